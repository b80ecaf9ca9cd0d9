//! Peers in other processes: killed, stopped, restarted. Over each transport.
//!
//! The child is this test binary again, running [`child`] alone, steered by lines on its stdin.

#[macro_use]
mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use kvrail_transfer::*;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

const LEN: usize = 8 << 20;

over_each_for_processes!(
    a_killed_peer_is_a_typed_error_and_others_notice_nothing,
    a_stopped_peer_is_a_typed_error_within_the_deadline,
    a_restarted_peer_at_the_same_address_is_another_peer,
    a_process_that_slept_does_not_take_its_own_silence_for_its_peers,
    a_sender_stopped_in_mid_transfer_does_no_harm_when_it_wakes,
    a_sender_frozen_between_its_check_and_its_copy_does_no_harm_when_it_wakes,
);

/// A line for the parent; the harness prints its own between them.
fn say(line: &str) {
    println!("\nchild: {line}");
    std::io::stdout().flush().unwrap();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16).unwrap()).collect()
}

/// The other process: an engine with memory of `LEN` bytes, steered by lines.
#[tokio::test]
async fn child() {
    let Ok(kind) = std::env::var("KVRAIL_TEST_CHILD") else { return };
    let kind = match kind.as_str() {
        "shm" => TransportKind::Shm,
        "rdma" => TransportKind::Rdma,
        _ => TransportKind::Tcp,
    };
    let listen: SocketAddr = std::env::var("KVRAIL_TEST_LISTEN").unwrap().parse().unwrap();
    let gate = Gate::default();
    let gated = std::env::var_os("KVRAIL_TEST_GATED").is_some();
    let faults = gated.then(|| FaultPlan { post_gate: Some(gate.clone()), ..FaultPlan::default() });
    let engine = Engine::start(EngineConfig { listen, faults, ..config(kind) }).unwrap();
    let memory = region(&engine, LEN, &vec![0xcc; LEN]);
    let mut leases = Vec::new();
    let mut transfers = Vec::new();
    say(&format!("ready {} {}", engine.local_addr(), engine.generation()));
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "lend" => {
                let lease = lend_all(&engine, &memory, Access::Write);
                say(&format!("lent {}", hex(&lease.ticket().to_bytes())));
                leases.push(lease);
            }
            "write" => {
                let peer = within(engine.connect(words[1].parse().unwrap(), None)).await.unwrap();
                let ticket = LeaseTicket::from_bytes(&unhex(words[2])).unwrap();
                transfers.push(engine.submit(&peer, request(&memory, &ticket, Direction::Write, blocks())).unwrap());
                say("writing");
            }
            "done" => {
                let report = within(transfers.remove(0)).await;
                say(&format!("{:?}, {} lost", report.status, engine.stats().peers_lost));
            }
            "checked" => {
                eventually("a slice is about to be sent", || gate.is_reached()).await;
                say("checked");
            }
            "send" => {
                gate.open();
                say("sending");
            }
            _ => return,
        }
    }
}

fn blocks() -> Vec<Op> {
    let n = LEN as u64 >> 12;
    (0..n).map(|i| Op::contiguous(i << 12, (i * 1021 % n) << 12, 1 << 12)).collect()
}

struct Other {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    address: SocketAddr,
    generation: u64,
}

impl Other {
    fn start(kind: TransportKind, listen: &str) -> Self {
        Self::spawn(kind, listen, &mut Command::new(std::env::current_exe().unwrap()))
    }

    /// One that stops between its check of a slice and its sending, until it is told to send.
    fn start_gated(kind: TransportKind) -> Self {
        Self::spawn(kind, "127.0.0.1:0", Command::new(std::env::current_exe().unwrap()).env("KVRAIL_TEST_GATED", "1"))
    }

    fn spawn(kind: TransportKind, listen: &str, command: &mut Command) -> Self {
        let mut process = command
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env("KVRAIL_TEST_CHILD", format!("{kind:?}").to_lowercase())
            .env("KVRAIL_TEST_LISTEN", listen)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let address = "0.0.0.0:0".parse().unwrap();
        let mut other = Self { process, input, output, address, generation: 0 };
        let ready = other.hear();
        let (address, generation) = ready.strip_prefix("ready ").unwrap().split_once(' ').unwrap();
        (other.address, other.generation) = (address.parse().unwrap(), generation.parse().unwrap());
        other
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the child has ended");
            if let Some(said) = line.strip_prefix("child: ") {
                return said.trim_end().to_string();
            }
        }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        self.hear()
    }

    fn lend(&mut self) -> LeaseTicket {
        let said = self.ask("lend");
        LeaseTicket::from_bytes(&unhex(said.strip_prefix("lent ").unwrap())).unwrap()
    }

    /// Stops it, and waits until each of its threads stands still.
    fn stop(&self) {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    fn wake(&self) {
        kill_process(Pid::from_child(&self.process), Signal::CONT).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn a_killed_peer_is_a_typed_error_and_others_notice_nothing(kind: TransportKind) {
    let a = engine(kind);
    let (mut victim, mut bystander) = (Other::start(kind, "127.0.0.1:0"), Other::start(kind, "127.0.0.1:0"));
    let to_victim = within(a.connect(victim.address, Some(victim.generation))).await.unwrap();
    let to_bystander = within(a.connect(bystander.address, None)).await.unwrap();
    let source = region(&a, LEN, &[1; 1]);
    let (ticket, other_ticket) = (victim.lend(), bystander.lend());
    for round in 0.. {
        let doomed = a.submit(&to_victim, request(&source, &ticket, Direction::Write, blocks())).unwrap();
        let safe = a.submit(&to_bystander, request(&source, &other_ticket, Direction::Write, blocks())).unwrap();
        if round == 1 {
            victim.process.kill().unwrap();
        }
        let quiesced = doomed.quiesce();
        let report = within(doomed).await;
        assert_eq!(within(safe).await.status, Ok(()), "the bystander's transfer");
        within(quiesced).await;
        if let Err(error) = report.status {
            assert!(error.is_peer_lost(), "{error}");
            break;
        }
        // Done before the signal came: the next one meets a dead peer.
        if !to_victim.is_alive() {
            break;
        }
    }
    within(to_victim.lost()).await;
    assert!(to_bystander.is_alive());
    let error = within(a.connect(victim.address, None)).await.err().unwrap();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    assert_nothing_is_left(&[&a]).await;
}

async fn a_stopped_peer_is_a_typed_error_within_the_deadline(kind: TransportKind) {
    let a = engine(kind);
    let mut victim = Other::start(kind, "127.0.0.1:0");
    let peer = within(a.connect(victim.address, None)).await.unwrap();
    let (source, ticket) = (region(&a, LEN, &[1; 1]), victim.lend());
    victim.stop();
    let deadline = Instant::now() + Duration::from_millis(300);
    let ask = TransferRequest { deadline, ..request(&source, &ticket, Direction::Write, blocks()) };
    let transfer = a.submit(&peer, ask).unwrap();
    let quiesced = transfer.quiesce();
    let error = within(transfer).await.status.unwrap_err();
    assert!(error.is_deadline() || error.is_peer_lost(), "{error}");
    assert!(Instant::now() < deadline + Duration::from_secs(2));
    // Silence ends the session too, with the deadline far away.
    if peer.is_alive() {
        let transfer = a.submit(&peer, request(&source, &ticket, Direction::Write, blocks()));
        if let Ok(transfer) = transfer {
            let error = within(transfer).await.status.unwrap_err();
            assert!(error.is_peer_lost(), "{error}");
        }
    }
    within(peer.lost()).await;
    // Over tcp the bytes have left our memory; over shm the sleeper may still be copying out of it when it wakes.
    victim.wake();
    within(quiesced).await;
    assert_nothing_is_left(&[&a]).await;
    let again = within(a.connect(victim.address, Some(victim.generation))).await.unwrap();
    let transfer = a.submit(&again, request(&source, &ticket, Direction::Write, blocks())).unwrap();
    assert_eq!(within(transfer).await.status, Ok(()), "the lease outlived the session");
}

async fn a_restarted_peer_at_the_same_address_is_another_peer(kind: TransportKind) {
    let a = engine(kind);
    let mut first = Other::start(kind, "127.0.0.1:0");
    let peer = within(a.connect(first.address, None)).await.unwrap();
    let (source, old_ticket) = (region(&a, LEN, &[1; 1]), first.lend());
    let (address, old_generation) = (first.address.to_string(), first.generation);
    drop(first);
    let mut second = Other::start(kind, &address);
    assert_ne!(second.generation, old_generation);
    let stale = within(a.connect(second.address, Some(old_generation))).await;
    match stale {
        Ok(_) => panic!("the old generation is gone"),
        Err(error) => {
            assert_eq!(error, ConnectError::WrongGeneration { expected: old_generation, found: second.generation });
        }
    }
    let again = within(a.connect(second.address, Some(second.generation))).await.unwrap();
    within(peer.lost()).await;
    let refused = a.submit(&again, request(&source, &old_ticket, Direction::Write, blocks())).err();
    assert_eq!(refused, Some(SubmitError::WrongPeer { ticket: old_generation, peer: second.generation }));
    let ticket = second.lend();
    let transfer = a.submit(&again, request(&source, &ticket, Direction::Write, blocks())).unwrap();
    let report = within(transfer).await;
    assert_eq!(report.status, Ok(()), "{} bytes, {} again, {:?}", report.bytes, report.retried_bytes, a.stats());
}

/// A process that is stopped for longer than its own patience (a debugger, a frozen group) finds unread what its peers said meanwhile.
async fn a_process_that_slept_does_not_take_its_own_silence_for_its_peers(kind: TransportKind) {
    let owner = Engine::start(EngineConfig { peer_timeout: Duration::from_secs(30), ..config(kind) }).unwrap();
    let target = region(&owner, LEN, &[]);
    let lease = lend_all(&owner, &target, Access::Write);
    let mut sender = Other::start(kind, "127.0.0.1:0");
    let write = format!("write {} {}", owner.local_addr(), hex(&lease.ticket().to_bytes()));
    for _ in 0..3 {
        sender.ask(&write);
        assert_eq!(sender.ask("done"), "Ok(()), 0 lost");
        sender.stop();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        sender.wake();
    }
}

/// The sender stops between its announcement and whatever it would do next; the owner revokes and reuses the memory
/// meanwhile, and nothing of it changes when the sender goes on.
async fn a_sender_stopped_in_mid_transfer_does_no_harm_when_it_wakes(kind: TransportKind) {
    for pause in [0, 3, 10] {
        let owner = engine(kind);
        let target = region(&owner, LEN, &[]);
        let lease = lend_all(&owner, &target, Access::Write);
        let mut sender = Other::start(kind, "127.0.0.1:0");
        sender.ask(&format!("write {} {}", owner.local_addr(), hex(&lease.ticket().to_bytes())));
        tokio::time::sleep(Duration::from_millis(pause)).await;
        sender.stop();
        let started = Instant::now();
        within(lease.revoke()).await;
        assert!(started.elapsed() < Duration::from_secs(2), "the fence waited for a sleeper");
        let fresh = vec![0x11; LEN];
        target.write(0, &fresh);
        sender.wake();
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(30)).await;
            assert!(bytes(&target) == fresh, "a late write after a pause of {pause} ms");
        }
        assert_nothing_is_left(&[&owner]).await;
    }
}

/// The sender's process has checked its slices and is about to send them (over shared memory: to have them copied) when it is
/// stopped. The owner revokes and reuses the memory; then the sender wakes and sends.
async fn a_sender_frozen_between_its_check_and_its_copy_does_no_harm_when_it_wakes(kind: TransportKind) {
    let silence = Duration::from_secs(30);
    let owner = Engine::start(EngineConfig { peer_timeout: silence, ..config(kind) }).unwrap();
    let target = region(&owner, LEN, &[]);
    let lease = lend_all(&owner, &target, Access::Write);
    let mut sender = Other::start_gated(kind);
    sender.ask(&format!("write {} {}", owner.local_addr(), hex(&lease.ticket().to_bytes())));
    sender.ask("checked");
    sender.stop();
    within(lease.revoke()).await;
    let fresh = vec![0x11; LEN];
    target.write(0, &fresh);
    sender.wake();
    sender.ask("send");
    eventually("a slice comes", || owner.stats().frames_refused > 0 || bytes(&target) != fresh).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(bytes(&target) == fresh, "{LATE_WRITE}");
    assert_nothing_is_left(&[&owner]).await;
}
