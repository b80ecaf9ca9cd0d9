//! What every transport must do, run over each of them.

mod common;

use common::*;
use kvrail_transfer::*;

macro_rules! over_each_transport {
    ($($name:ident),* $(,)?) => {
        mod tcp {
            $(#[tokio::test] async fn $name() { super::$name(super::TransportKind::Tcp).await; })*
        }
        mod shm {
            $(#[tokio::test] async fn $name() { super::$name(super::TransportKind::Shm).await; })*
        }
    };
}

over_each_transport!(a_write_is_visible_when_it_is_done);

async fn a_write_is_visible_when_it_is_done(kind: TransportKind) {
    let (a, b, peer) = within(pair(kind)).await;
    let data = pattern(1, 3 << 20);
    let (source, target) = (region(&a, 3 << 20, &data), region(&b, 4 << 20, &[]));
    let lease = lend(&b, &target, Access::Write, &[(4096, 3 << 20)]);
    let ticket = LeaseTicket::from_bytes(&lease.ticket().to_bytes()).unwrap();
    let ops = vec![Op::contiguous(0, 4096, 3 << 20)];
    let report = within(a.submit(&peer, request(&source, &ticket, Direction::Write, ops)).unwrap()).await;
    assert_eq!(report.status, Ok(()));
    assert_eq!((report.bytes, report.retried_bytes), (3 << 20, 0));
    assert!(report.bytes_by_rail.iter().all(|r| r.transport == kind));
    assert_eq!(lease.bytes_landed(), 3 << 20);
    let got = bytes(&target);
    assert!(got[4096..4096 + data.len()] == data[..], "the bytes are there");
    assert!(got[..4096].iter().chain(&got[4096 + data.len()..]).all(|b| *b == 0), "and nowhere else");
}
