//! A peer sends anything over a data stream, some of it under a lease that it has.
#![no_main]

use std::io::Write;
use std::net::Shutdown;

use kvrail_transfer::testing::{closes, stream};
use kvrail_transfer_fuzz::{Victim, script};

thread_local!(static VICTIM: Victim = Victim::default());

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    VICTIM.with(|victim| {
        let session = victim.session();
        let mut socket = stream(victim.address(), &session, 1).expect("a stream of a session");
        let said = script::frames(input, victim.tickets());
        // What it answers is read meanwhile: a peer that does not read is cut off, which is another story.
        let mut ear = socket.try_clone().expect("a descriptor");
        let listener = std::thread::spawn(move || closes(&mut ear));
        let _ = socket.write_all(&said);
        let _ = socket.shutdown(Shutdown::Write);
        assert!(listener.join().expect("listens"), "it neither answers nor hangs up");
        victim.check();
    });
});
