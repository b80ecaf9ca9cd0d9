//! Somebody dials and says anything.
#![no_main]

use std::io::Write;
use std::net::Shutdown;

use kvrail_transfer::testing::{closes, dial};
use kvrail_transfer_fuzz::{Victim, script};

thread_local!(static VICTIM: Victim = Victim::default());

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    VICTIM.with(|victim| {
        let mut socket = dial(victim.address()).expect("the port is open");
        // It may hang up before all is said.
        let _ = socket.write_all(&script::messages(input));
        let _ = socket.shutdown(Shutdown::Write);
        assert!(closes(&mut socket), "it neither answers nor hangs up");
        victim.check();
    });
});
