//! A peer with a session says anything over its control connection.
#![no_main]

use std::io::Write;
use std::net::Shutdown;

use kvrail_transfer::testing::closes;
use kvrail_transfer_fuzz::{Victim, script};

thread_local!(static VICTIM: Victim = Victim::default());

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    VICTIM.with(|victim| {
        let mut session = victim.session();
        let _ = session.control.write_all(&script::messages(input));
        let _ = session.control.shutdown(Shutdown::Write);
        assert!(closes(&mut session.control), "it neither answers nor hangs up");
        victim.check();
    });
});
