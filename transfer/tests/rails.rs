//! TCP over several rails: every rail carries, streams stay on the rail that they are bound to, unequal ends go together.

mod common;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use common::*;
use kvrail_transfer::*;

const LEN: usize = 8 << 20;

fn engine_on(rails: &[String]) -> Engine {
    let tcp_rails = rails.iter().map(|rail| rail.parse().unwrap()).collect();
    Engine::start(EngineConfig { tcp_rails, ..config(TransportKind::Tcp) }).unwrap()
}

/// Rails that tests on loopback can have: subnets of 127/8, of this test alone.
fn rails(test: u8, host: u8, count: u8) -> Vec<String> {
    (0..count).map(|rail| format!("127.{test}.{rail}.{host}/24")).collect()
}

/// Established connections of this machine between addresses of 127.`test`/16: from which to which.
fn connections(test: u8) -> BTreeSet<(Ipv4Addr, Ipv4Addr)> {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let address =
        |field: &str| u32::from_str_radix(field.split(':').next()?, 16).ok().map(|a| Ipv4Addr::from(a.to_be()));
    let ends = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (*fields.get(3)? == "01").then(|| Some((address(fields[1])?, address(fields[2])?)))?
    });
    ends.filter(|(from, _)| from.octets()[1] == test).collect()
}

/// Moves bytes from one engine to the other and back, and gives the streams that carried some of them.
async fn moves(a: &Engine, b: &Engine) -> usize {
    let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
    let (here, there) = (region(a, LEN, &pattern(1, LEN)), region(b, LEN, &[]));
    let mut streams = BTreeSet::new();
    for (direction, access) in [(Direction::Write, Access::Write), (Direction::Read, Access::Read)] {
        let lease = lend_all(b, &there, access);
        let ops = vec![Op::contiguous(0, 0, LEN as u64)];
        let report = within(a.submit(&peer, request(&here, &lease.ticket(), direction, ops)).unwrap()).await;
        assert_eq!(report.status, Ok(()));
        streams.extend(report.bytes_by_rail.iter().map(|rail| rail.stream));
        assert!(bytes(&here) == pattern(1, LEN) && bytes(&there) == pattern(1, LEN));
    }
    streams.len()
}

#[tokio::test]
async fn every_rail_carries_and_streams_stay_on_theirs() {
    let (a, b) = (engine_on(&rails(41, 1, 4)), engine_on(&rails(41, 2, 4)));
    assert!(moves(&a, &b).await > 1, "one stream carried it all");
    let ip = |rail, host| Ipv4Addr::new(127, 41, rail, host);
    let want = (0..4).flat_map(|rail| [(ip(rail, 1), ip(rail, 2)), (ip(rail, 2), ip(rail, 1))]);
    assert_eq!(connections(41), want.collect());
    // And the other way, over the same session.
    moves(&b, &a).await;
    assert_eq!(connections(41).len(), 8);
}

#[tokio::test]
async fn unequal_ends_go_together() {
    for (test, near, far) in [(42, 3, 1), (43, 1, 3), (44, 0, 2), (45, 2, 0)] {
        let (a, b) = (engine_on(&rails(test, 1, near)), engine_on(&rails(test, 2, far)));
        moves(&a, &b).await;
        let ends: BTreeSet<Ipv4Addr> = connections(test).into_iter().map(|(from, _)| from).collect();
        for (rails, host) in [(near, 1), (far, 2)] {
            (0..rails)
                .for_each(|rail| assert!(ends.contains(&Ipv4Addr::new(127, test, rail, host)), "{test}: {ends:?}"));
        }
    }
}

#[tokio::test]
async fn families_that_do_not_meet_are_no_transport_in_common() {
    let (a, b) = (engine_on(&["127.46.0.1/24".into()]), engine_on(&["::1/128".into()]));
    assert_eq!(within(a.connect(b.local_addr(), None)).await.err(), Some(ConnectError::NoTransport));
}

#[test]
fn a_rail_that_cannot_be_had_is_told_at_start() {
    let start = |rail: &str| {
        let tcp_rails = vec![rail.parse().unwrap()];
        Engine::start(EngineConfig { tcp_rails, ..config(TransportKind::Tcp) }).err().unwrap()
    };
    assert!(matches!(start("192.0.2.1/24"), EngineError::Os { .. }), "not an address of this machine");
    assert!(matches!(start("127.0.0.1/8@no-such-device"), EngineError::Os { .. }));
    assert!(matches!(start("0.0.0.0/0"), EngineError::Config { name: "tcp_rails", .. }));
}
