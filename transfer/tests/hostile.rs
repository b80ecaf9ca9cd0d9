//! Whatever comes over the wire: a typed refusal, no panic, no hang, and the engine still serves others.

mod common;

use std::io::Write;
use std::time::{Duration, Instant};

use common::*;
use kvrail_transfer::testing::status::{CORRUPT, OK, OUTSIDE, STALE};
use kvrail_transfer::testing::*;
use kvrail_transfer::*;

/// An owner with 64 KiB lent for writing, and the lease.
fn owner() -> (Engine, Region, Lease) {
    let owner = Engine::start(EngineConfig {
        // Long enough that a test's own silence does not end its session.
        peer_timeout: Duration::from_secs(30),
        connect_timeout: Duration::from_millis(500),
        ..config(TransportKind::Tcp)
    });
    let owner = owner.unwrap();
    let target = region(&owner, 1 << 20, &[7; 1 << 20]);
    let lease = lend(&owner, &target, Access::Write, &[(4096, 65_536)]);
    (owner, target, lease)
}

#[tokio::test]
async fn other_protocols_on_the_port_are_refused_and_closed() {
    let (owner, _target, _lease) = owner();
    let tls = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    let cases: [&[u8]; 5] =
        [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &tls, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0; 64], &[0xff; 64]];
    for case in cases {
        let mut socket = dial(owner.local_addr()).unwrap();
        socket.write_all(case).unwrap();
        assert!(closes(&mut socket), "{case:?}");
    }
    for seed in 0..100 {
        let mut socket = dial(owner.local_addr()).unwrap();
        let _ = socket.write_all(&pattern(seed, 200));
        assert!(closes(&mut socket), "seed {seed}");
    }
    assert!(owner.stats().protocol_errors >= 105 && owner.stats().rejections["not_an_engine"] >= 105);
    assert_serves(&owner, TransportKind::Tcp).await;
}

#[tokio::test]
async fn broken_messages_are_refused() {
    let (owner, _target, _lease) = owner();
    let good = hello((1, 1), 5);
    let mut huge = good.clone();
    huge[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut empty = good.clone();
    empty[4..8].copy_from_slice(&[0; 4]);
    let out_of_turn = heartbeat();
    let unknown = message(&[200, 1, 2]);
    let longer = message(&[&good[8..], &[0]].concat());
    let no_stream_kind = message(&[&[8][..], &[0; 24], &[9, 0, 0, 0, 0, 0]].concat());
    for case in [huge, empty, out_of_turn, unknown, longer, no_stream_kind] {
        let mut socket = dial(owner.local_addr()).unwrap();
        socket.write_all(&case).unwrap();
        assert!(closes(&mut socket), "{case:?}");
    }
    assert_serves(&owner, TransportKind::Tcp).await;
}

#[tokio::test]
async fn a_version_that_nobody_speaks_is_refused_with_the_range() {
    let (owner, _target, _lease) = owner();
    let mut socket = dial(owner.local_addr()).unwrap();
    socket.write_all(&hello((7, 9), 5)).unwrap();
    assert_eq!(read_message(&mut socket).unwrap(), [7, 2, 1, 0, 2, 0], "refused: version, 1 to 2");
    assert!(closes(&mut socket));
    // A range that overlaps is taken at its best.
    let mut socket = dial(owner.local_addr()).unwrap();
    socket.write_all(&hello((1, 9), 5)).unwrap();
    assert_eq!(read_message(&mut socket).unwrap()[..3], [2, 2, 0]);
}

#[tokio::test]
async fn a_dialler_tells_apart_who_answers() {
    let a = engine(TransportKind::Tcp);
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let web = std::thread::spawn(move || {
        let (mut socket, _) = server.accept().unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        // Kept open until the engine has hung up.
        closes(&mut socket);
        server
    });
    assert_eq!(within(a.connect(address, None)).await.err(), Some(ConnectError::NotAnEngine { address }));
    drop(web.join().unwrap());
    let nobody = within(a.connect(address, None)).await.err().unwrap();
    assert!(matches!(nobody, ConnectError::Unreachable { .. }), "{nobody}");
    let myself = within(a.connect(a.local_addr(), None)).await.err();
    assert_eq!(myself, Some(ConnectError::Myself));
    let b = engine(TransportKind::Tcp);
    let wrong = within(a.connect(b.local_addr(), Some(1))).await.err();
    assert_eq!(wrong, Some(ConnectError::WrongGeneration { expected: 1, found: b.generation() }));
    let c = engine(TransportKind::Shm);
    assert_eq!(within(a.connect(c.local_addr(), None)).await.err(), Some(ConnectError::NoTransport));
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hasty = EngineConfig { connect_timeout: Duration::from_millis(200), ..config(TransportKind::Tcp) };
    let address = silent.local_addr().unwrap();
    let late = within(Engine::start(hasty).unwrap().connect(address, None)).await.err();
    assert_eq!(late, Some(ConnectError::TimedOut { address }));
}

#[tokio::test]
async fn silent_and_countless_connections_do_not_keep_others_out() {
    let (owner, _target, _lease) = owner();
    let mut half = dial(owner.local_addr()).unwrap();
    half.write_all(&hello((1, 1), 5)[..11]).unwrap();
    let started = Instant::now();
    assert!(closes(&mut half), "half a message is given up");
    assert!(started.elapsed() >= Duration::from_millis(400), "but not at once");
    let crowd: Vec<_> = (0..400).map(|_| dial(owner.local_addr()).unwrap()).collect();
    // Past the limit strangers are turned away at once, and those within it after their time.
    eventually("the crowd is gone", || owner.stats().protocol_errors > 300).await;
    assert_serves(&owner, TransportKind::Tcp).await;
    drop(crowd);
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Ten thousand that say half a word, or nothing: memory and descriptors stay where they were, who was there before is served
/// all the while, and who comes then is let in when their time is over.
#[tokio::test]
async fn ten_thousand_half_open_connections_take_neither_memory_nor_service() {
    // One descriptor each is ours, and some are the engine's while they are new to it.
    let limit = rustix::process::Resource::Nofile;
    let most = rustix::process::getrlimit(limit).maximum;
    rustix::process::setrlimit(limit, rustix::process::Rlimit { current: most, maximum: most }).unwrap();
    // Where fewer may be open, fewer are: the figure says how many, and suite `hostile` wants all.
    let countless = most.map_or(10_000, |most| most.saturating_sub(2000).min(10_000)) as usize;
    let (owner, _target, _lease) = owner();
    let friend = engine(TransportKind::Tcp);
    let peer = within(friend.connect(owner.local_addr(), None)).await.unwrap();
    let (source, served) = (region(&friend, 4096, &pattern(3, 4096)), region(&owner, 4096, &[]));
    let serving = lend_all(&owner, &served, Access::Write);
    let ticket = serving.ticket();
    let before = resident();
    let (mut crowd, mut most_memory, mut slowest) = (Vec::with_capacity(countless), 0, Duration::ZERO);
    for n in 0..countless {
        let Ok(mut socket) = dial(owner.local_addr()) else { continue };
        let _ = socket.write_all(&hello((1, 1), 5)[..n % 12]);
        crowd.push(socket);
        if n % 500 == 0 {
            let ask = request(&source, &ticket, Direction::Write, vec![Op::contiguous(0, 0, 4096)]);
            let started = Instant::now();
            assert_eq!(within(friend.submit(&peer, ask).unwrap()).await.status, Ok(()));
            slowest = slowest.max(started.elapsed());
            most_memory = most_memory.max(resident().saturating_sub(before));
        }
    }
    println!(
        "figure {} half-open connections: {:.1} MiB more in memory at most, a transfer meanwhile {slowest:?} at most",
        crowd.len(),
        most_memory as f64 / 1_048_576.0
    );
    assert_eq!(crowd.len(), countless);
    assert!(most_memory < 64 << 20, "{most_memory} bytes");
    eventually("who is silent is turned away", || owner.stats().protocol_errors >= countless as u64).await;
    assert_serves(&owner, TransportKind::Tcp).await;
}

#[tokio::test]
async fn a_stream_needs_its_sessions_token_and_a_new_number() {
    let (owner, _target, _lease) = owner();
    let session = session(owner.local_addr(), 5).unwrap();
    let (id, token) = (session.id, session.token);
    let mut wrong = token;
    wrong[3] ^= 1;
    for hello in [stream_hello(id, wrong, 1), stream_hello(id ^ 1, token, 1)] {
        let mut socket = dial(owner.local_addr()).unwrap();
        socket.write_all(&hello).unwrap();
        assert_eq!(read_message(&mut socket).unwrap()[..2], [7, 6], "refused: unknown session");
    }
    let _first = stream(owner.local_addr(), &session, 3).unwrap();
    for old in [3, 2] {
        let mut socket = dial(owner.local_addr()).unwrap();
        socket.write_all(&stream_hello(id, token, old)).unwrap();
        assert_eq!(read_message(&mut socket).unwrap()[..2], [7, 7], "refused: fenced");
    }
}

#[tokio::test]
async fn frames_are_refused_by_lease_generation_and_range_before_memory_is_touched() {
    let (owner, target, lease) = owner();
    let before = bytes(&target);
    let session = session(owner.local_addr(), 5).unwrap();
    let mut socket = stream(owner.local_addr(), &session, 1).unwrap();
    let [generation, number, key] = fields(&lease.ticket().to_bytes());
    let inside = [(4096, 512)];
    type Case<'a> = ([u64; 3], &'a [(u64, u32)], u32);
    let cases: [Case<'_>; 9] = [
        ([generation ^ 1, number, key], &inside, STALE),
        ([generation, number + 1, key], &inside, STALE),
        ([generation, number, key ^ 1], &inside, STALE),
        ([generation, number, key], &[(4095, 512)], OUTSIDE),
        ([generation, number, key], &[(69_632, 1)], OUTSIDE),
        ([generation, number, key], &[(69_120, 513)], OUTSIDE),
        ([generation, number, key], &[(u64::MAX, 512)], OUTSIDE),
        ([generation, number, key], &[(u64::MAX - 511, 512)], OUTSIDE),
        // One bad range spoils the frame: not a byte of the good one lands.
        ([generation, number, key], &[(4096, 512), (0, 512)], OUTSIDE),
    ];
    for (slice, (ticket, ranges, status)) in cases.into_iter().enumerate() {
        let len: u32 = ranges.iter().map(|r| r.1).sum();
        socket.write_all(&Head::new(1, slice as u64, ticket, ranges).sealed()).unwrap();
        socket.write_all(&vec![0xee; len as usize]).unwrap();
        assert_eq!(read_ack(&mut socket).unwrap(), (slice as u64, status), "{ranges:?}");
    }
    assert!(bytes(&target) == before);
    assert_eq!(owner.stats().frames_refused, 9);
    // The stream has kept its framing all along.
    socket.write_all(&Head::new(1, 99, [generation, number, key], &inside).sealed()).unwrap();
    socket.write_all(&[1; 512]).unwrap();
    assert_eq!(read_ack(&mut socket).unwrap(), (99, OK));
    assert!(bytes(&target)[4096..4608].iter().all(|b| *b == 1));
    assert_eq!(lease.bytes_landed(), 512);
}

#[tokio::test]
async fn frames_that_break_the_protocol_end_their_stream_and_nothing_else() {
    let (owner, target, lease) = owner();
    let before = bytes(&target);
    let session = session(owner.local_addr(), 5).unwrap();
    let t = fields(&lease.ticket().to_bytes());
    let range = [(4096, 512)];
    let mut unsealed = Head::new(1, 1, t, &range).sealed();
    unsealed[65] ^= 1;
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("random", pattern(3, 4096)),
        ("bad seal", unsealed),
        ("unknown kind", Head::new(77, 1, t, &[]).sealed()),
        ("unknown flags", Head::new(1, 1, t, &range).with(1, &[0xf0]).sealed()),
        ("longer than its ranges", Head::new(1, 1, t, &range).with(4, &513u32.to_le_bytes()).sealed()),
        ("shorter than its ranges", Head::new(1, 1, t, &range).with(4, &511u32.to_le_bytes()).sealed()),
        ("no bytes", Head::new(1, 1, t, &[]).sealed()),
        ("too long", Head::new(1, 1, t, &range).with(4, &u32::MAX.to_le_bytes()).sealed()),
        ("too many ranges", Head::new(1, 1, t, &range).with(2, &u16::MAX.to_le_bytes()).sealed()),
        ("data unasked", Head::new(4, 1, t, &[]).with(4, &512u32.to_le_bytes()).sealed()),
        ("unknown status", Head::new(5, 1, t, &[]).with(52, &99u32.to_le_bytes()).sealed()),
        ("export over tcp", Head::new(7, 1, t, &[]).sealed()),
        ("copy out of nothing", Head::new(8, 1, t, &[]).sealed()),
        ("write by reference over tcp", {
            let head = Head { bytes: [&Head::new(2, 1, t, &range).bytes[..], &[0; 8]].concat() };
            head.sealed()
        }),
    ];
    for (n, (what, frame)) in cases.into_iter().enumerate() {
        // A stream that ended is opened anew under the next number; the place may take a moment to be free.
        let mut socket = loop {
            let mut socket = dial(owner.local_addr()).unwrap();
            socket.write_all(&stream_hello(session.id, session.token, n as u32 + 1)).unwrap();
            if read_message(&mut socket).is_ok_and(|m| m == [9]) {
                break socket;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        socket.write_all(&frame).unwrap();
        assert!(closes(&mut socket), "{what}");
    }
    assert!(bytes(&target) == before);
    assert_eq!(owner.stats().peers, 1, "the session stands");
    assert_serves(&owner, TransportKind::Tcp).await;
}

#[tokio::test]
async fn the_checksum_catches_every_flipped_bit() {
    let (owner, target, lease) = owner();
    let session = session(owner.local_addr(), 5).unwrap();
    let mut socket = stream(owner.local_addr(), &session, 1).unwrap();
    let t = fields(&lease.ticket().to_bytes());
    let payload = pattern(8, 96);
    let crc = crc32fast::hash(&payload).to_le_bytes();
    let head = |n| Head::new(1, n, t, &[(4096, 32), (8192, 64)]).with(1, &[1]).with(48, &crc).sealed();
    for bit in 0..payload.len() * 8 {
        let mut bad = payload.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        socket.write_all(&head(bit as u64)).unwrap();
        socket.write_all(&bad).unwrap();
        assert_eq!(read_ack(&mut socket).unwrap(), (bit as u64, CORRUPT), "bit {bit}");
    }
    assert_eq!((owner.stats().checksum_errors, lease.bytes_landed()), (768, 0));
    socket.write_all(&head(9999)).unwrap();
    socket.write_all(&payload).unwrap();
    assert_eq!(read_ack(&mut socket).unwrap(), (9999, OK));
    assert!(bytes(&target)[8192..8256] == payload[32..]);
}

/// Half a payload has landed when its sender falls asleep and the owner revokes: the fence does not wait for the sender,
/// and the other half lands nowhere.
#[tokio::test]
async fn a_sender_asleep_in_mid_frame_neither_delays_the_fence_nor_writes_past_it() {
    let (owner, target, lease) = owner();
    let session = session(owner.local_addr(), 5).unwrap();
    let mut socket = stream(owner.local_addr(), &session, 1).unwrap();
    let t = fields(&lease.ticket().to_bytes());
    socket.write_all(&Head::new(1, 1, t, &[(4096, 65_536)]).sealed()).unwrap();
    socket.write_all(&[0xee; 30_000]).unwrap();
    eventually("the first half lands", || bytes(&target)[4096 + 29_999] == 0xee).await;
    let started = Instant::now();
    assert_eq!(within(lease.revoke()).await.bytes_landed, 0);
    assert!(started.elapsed() < Duration::from_secs(1), "the fence waited for the sender");
    let fresh = pattern(5, 1 << 20);
    target.write(0, &fresh);
    socket.write_all(&[0xee; 35_536]).unwrap();
    assert_eq!(read_ack(&mut socket).unwrap(), (1, STALE));
    assert!(bytes(&target) == fresh, "the rest of a revoked frame landed");
    assert_eq!((owner.stats().leases, owner.stats().leases_quarantined), (0, 0));
}

/// A dead session's streams are closed before anything else: what they still hold lands nowhere.
#[tokio::test]
async fn a_peer_that_comes_back_under_a_new_generation_fences_the_old_one() {
    let (owner, target, lease) = owner();
    let session_of = |generation| session(owner.local_addr(), generation).unwrap();
    let session = session_of(5);
    let mut old = stream(owner.local_addr(), &session, 1).unwrap();
    let t = fields(&lease.ticket().to_bytes());
    old.write_all(&Head::new(1, 1, t, &[(4096, 65_536)]).sealed()).unwrap();
    old.write_all(&[0xee; 1000]).unwrap();
    eventually("it begins to land", || bytes(&target)[4096] == 0xee).await;
    // The same place, another generation.
    let _new = session_of(6);
    assert!(closes(&mut old), "the old generation's streams are closed");
    eventually("one session is left", || owner.stats().peers == 1 && owner.stats().peers_lost == 1).await;
    let now = bytes(&target);
    let _ = old.write_all(&[0xdd; 64_536]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(bytes(&target) == now);
}
