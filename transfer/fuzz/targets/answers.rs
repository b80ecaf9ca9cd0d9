//! An engine dials somebody who answers anything.
#![no_main]

use std::cell::OnceCell;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::time::Duration;

use kvrail_transfer_fuzz::{Victim, dial, script};

thread_local! {
    static VICTIM: Victim = Victim::default();
    static SERVER: OnceCell<TcpListener> = const { OnceCell::new() };
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    VICTIM.with(|victim| {
        SERVER.with(|server| {
            let server = server.get_or_init(|| TcpListener::bind("127.0.0.1:0").expect("a port"));
            let address = server.local_addr().expect("an address");
            let (server, answer) = (server.try_clone().expect("a descriptor"), script::messages(input));
            let answering = std::thread::spawn(move || {
                let Ok((mut socket, _)) = server.accept() else { return };
                let _ = socket.set_read_timeout(Some(Duration::from_secs(5)));
                let _ = socket.read(&mut [0; 256]);
                let _ = socket.write_all(&answer);
                let _ = socket.shutdown(Shutdown::Write);
                // Until the engine has hung up as well.
                while socket.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
            });
            dial(victim, address);
            answering.join().expect("answers");
            victim.check();
        });
    });
});
