//! Shared queues, and what a device reports on its own.

use std::process::Command;
use std::time::Instant;

use kvrail_verbs::{AsyncEvent, Context, Data, Operation, ReceiveChain, Status};

use crate::Outcome;
use crate::bench::{Bench, End, Options, PATIENCE, PORT, connect, wait};

/// The next event that is the one that is waited for.
fn event(context: &Context, wanted: impl Fn(&AsyncEvent) -> bool) -> AsyncEvent {
    let deadline = Instant::now() + PATIENCE;
    loop {
        while let Some(event) = context.event().expect("fetched") {
            if wanted(&event) {
                return event;
            }
            println!("  also: {event:?}");
        }
        assert!(wait(context, deadline), "the event did not come");
    }
}

pub fn shared_queue(bench: &Bench) -> Outcome {
    let owner = bench.end(1);
    let shared = owner.domain.shared_receive_queue(16, 1).expect("a shared queue");
    let target = owner.memory(16 * 64, 0);
    let mut chain = ReceiveChain::with_capacity(8, 8);
    for id in 0..8 {
        chain.push(id, &[target.segment(id as usize * 64, 64)]).expect("room");
    }
    shared.post_receive(&mut chain).expect("posted");
    shared.request_event_below(4).expect("asked");
    assert_eq!(owner.context.event().expect("fetched"), None, "not low yet");

    let senders: Vec<End> = (0..3).map(|_| bench.end(0)).collect();
    let mut answers = Vec::new();
    for sender in &senders {
        let qp = owner.domain.queue_pair(&owner.queue).shared(&shared).build().expect("a queue pair");
        let access = kvrail_verbs::Access::LOCAL_WRITE;
        qp.to_init(kvrail_verbs::ToInit { port: PORT, pkey_index: 0, access }).expect("init");
        let (lid_a, lid_b) =
            (sender.context.port(PORT).expect("port").lid, owner.context.port(PORT).expect("port").lid);
        connect(&qp, &sender.qp, owner.gid, sender.gid.gid, lid_a, &Options::default());
        connect(&sender.qp, &qp, sender.gid, owner.gid.gid, lid_b, &Options::default());
        answers.push(qp);
    }
    for round in 0..2 {
        for (sender, qp) in senders.iter().zip(&answers) {
            sender.post(round, Operation::Send, Data::Inline(&[round as u8 + 1; 64]));
            assert_eq!(sender.completion().status(), Status::Success);
            let got = owner.completion();
            assert_eq!((got.status(), got.bytes(), got.qp()), (Status::Success, 64, qp.number()));
            assert_eq!(target.bytes()[got.id() as usize * 64..][..64], [round as u8 + 1; 64]);
        }
    }
    let low = event(&owner.context, |event| matches!(event, AsyncEvent::SharedQueueLimit { .. }));
    assert_eq!(low, AsyncEvent::SharedQueueLimit { handle: shared.handle() });
    Ok(())
}

pub fn port_down_and_up(bench: &Bench) -> Outcome {
    if std::env::var_os("KVRAIL_TEST_LINK_DOWN").is_none() {
        return Err("KVRAIL_TEST_LINK_DOWN is not set".into());
    }
    let (context, gid) = &bench.devices[1];
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: there is room for a name.
    let name = unsafe {
        assert!(!libc::if_indextoname(gid.interface, name.as_mut_ptr()).is_null(), "interface {}", gid.interface);
        std::ffi::CStr::from_ptr(name.as_ptr()).to_string_lossy()
    };
    let set = |state: &str| {
        let status = Command::new("ip").args(["link", "set", "dev", &name, state]).status().expect("ip runs");
        assert!(status.success(), "ip link set dev {name} {state}");
    };
    set("down");
    event(context, |event| *event == AsyncEvent::PortError { port: PORT.into() });
    assert_ne!(context.port(PORT).expect("port").state, kvrail_verbs::PortState::Active);
    set("up");
    event(context, |event| *event == AsyncEvent::PortActive { port: PORT.into() });
    assert_eq!(context.port(PORT).expect("port").state, kvrail_verbs::PortState::Active);
    Ok(())
}
