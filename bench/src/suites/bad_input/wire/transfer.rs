//! The transfer port: strangers in the handshake, and a peer with a session and a lease that lies.

use std::io::Write;
use std::net::{Shutdown, SocketAddr};

use kvrail_transfer::LeaseTicket;
use kvrail_transfer::testing::{
    Head, MAGIC, Session, closes, dial, fields, generation, heartbeat, hello, hello_from, message, read_ack,
    read_message, refused, says, session, status, stream_hello,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::spawn_blocking;

use super::{Outcome, count, hired};
use crate::cluster::{Cluster, Process};

/// Generation that we say is ours.
const OURS: u64 = 5;
/// A frame that writes.
const WRITE: u8 = 1;

/// What a stranger says first, and what comes back.
struct Hello {
    name: &'static str,
    bytes: Vec<u8>,
    /// The sending side is closed behind it.
    ends: bool,
    /// The refusal, and the count that grows by it; `None`: the connection is closed without a word, and nothing is counted.
    refusal: Option<(u8, &'static str)>,
}

fn strangers(generation: u64) -> Vec<Hello> {
    let mut rng = SmallRng::seed_from_u64(7);
    let random: Vec<u8> = (0..65_536).map(|_| rng.random::<u8>()).collect();
    let right = hello((1, 1), OURS);
    let with_length = |length: u32| [&MAGIC[..], &length.to_le_bytes(), &right[8..]].concat();
    let case = |name, bytes, code, counter| Hello { name, bytes, ends: false, refusal: Some((code, counter)) };
    let stranger = |name, bytes| case(name, bytes, refused::NOT_AN_ENGINE, "not_an_engine");
    vec![
        stranger("an HTTP request", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec()),
        stranger("a TLS hello", vec![0x16, 3, 1, 0, 0xa5, 1, 0, 0, 0xa1, 3, 3, 9, 9, 9, 9]),
        stranger("64 KiB of random bytes", random),
        stranger("zeros", vec![0; 64]),
        stranger("a message of 4 GiB", with_length(u32::MAX)),
        stranger("a message of no bytes", with_length(0)),
        stranger("a hello whose fields pass its end", message(&right[8..20])),
        stranger("a hello that goes on behind its fields", message(&[&right[8..], &[0]].concat())),
        stranger("a message that nobody knows", message(&[200, 1, 2])),
        stranger("a message out of turn", heartbeat()),
        case("versions 7 to 9", hello((7, 9), OURS), refused::VERSION, "version"),
        case("the generation of the node itself", hello((1, 1), generation), refused::MYSELF, "myself"),
        case(
            "no transport in common",
            hello_from(([9; 16], 0), (1, 1), OURS, &[]),
            refused::NO_TRANSPORT,
            "no_transport",
        ),
        case("a stream of no session", stream_hello(1, [7; 16], 1), refused::UNKNOWN_SESSION, "unknown_session"),
        case("half a hello, then silence", right[..11].to_vec(), refused::TIMEOUT, "timeout"),
        Hello { name: "half a hello, then the end", bytes: right[..11].to_vec(), ends: true, refusal: None },
    ]
}

fn address(node: &Process) -> Result<SocketAddr, String> {
    node.address("transfer").parse().map_err(|e| format!("{}: {e}", node.name))
}

/// Runs blocking code where it harms nobody.
async fn blocking<T: Send + 'static>(f: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> Result<T, String> {
    spawn_blocking(f).await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

/// Every stranger at every node.
pub(super) async fn handshakes(cluster: &Cluster) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for node in cluster.prefill.iter().chain(&cluster.decode) {
        let at = address(node);
        let cases = match at.clone() {
            Ok(at) => blocking(move || generation(at)).await.map(strangers),
            Err(e) => Err(e),
        };
        match (cases, at) {
            (Ok(cases), Ok(at)) => {
                for case in cases {
                    outcomes.push((format!("{} at {}", case.name, node.name), meet(cluster, node, at, case).await));
                }
            }
            (Err(e), _) | (_, Err(e)) => outcomes.push((format!("an offer of {}", node.name), Err(e))),
        }
    }
    outcomes
}

async fn meet(cluster: &Cluster, node: &Process, at: SocketAddr, case: Hello) -> Result<(), String> {
    let rejected = "/sessions/rejected";
    let reason = case.refusal.map_or_else(|| format!("{rejected}/not_an_engine"), |(_, r)| format!("{rejected}/{r}"));
    let before = count(cluster, node, &reason).await?;
    let (answer, closed) = blocking(move || {
        let mut socket = dial(at)?;
        // It may be closed before it has read all.
        let _ = socket.write_all(&case.bytes);
        if case.ends {
            socket.shutdown(Shutdown::Write)?;
        }
        let answer = read_message(&mut socket).ok();
        Ok((answer, closes(&mut socket)))
    })
    .await?;
    let expected = case.refusal.map(|(code, _)| [says::REFUSE, code]);
    if answer.as_ref().and_then(|a| a.get(..2)) != expected.as_ref().map(|e| &e[..]) {
        return Err(format!("was answered {answer:?}, expected {expected:?}"));
    }
    // The versions that would be right come with every refusal.
    if answer.is_some_and(|a| a[2..] != [1, 0, 2, 0]) {
        return Err("the refusal does not tell the versions".into());
    }
    if !closed {
        return Err("was not closed".into());
    }
    let counted = count(cluster, node, &reason).await? - before;
    if counted == u64::from(expected.is_some()) { Ok(()) } else { Err(format!("{reason} grew by {counted}")) }
}

/// A slice: its name, whose lease it names, its ranges, and the status that it gets.
type Slice = (&'static str, [u64; 3], Vec<(u64, u32)>, u32);

/// A peer that has a session with the decode node, and a lease of it.
struct Liar<'a> {
    cluster: &'a Cluster,
    node: &'a Process,
    at: SocketAddr,
    session: Session,
    /// Generation, number and key of the lease.
    ticket: [u64; 3],
    /// First byte of the first block that is lent, and end of the last.
    lent: (u64, u64),
    /// Openings of the stream so far.
    openings: u32,
}

/// Lies over a session that was made by hand, under a lease that the decode node has granted.
pub(super) async fn frames(cluster: &Cluster) -> Vec<Outcome> {
    match lies(cluster).await {
        Ok(outcomes) => outcomes,
        Err(e) => vec![("a session by hand".into(), Err(e))],
    }
}

async fn lies(cluster: &Cluster) -> Result<Vec<Outcome>, String> {
    let node = cluster.decode.first().ok_or("no decode node")?;
    let hired = hired::by(cluster, node).await?;
    let at = address(node)?;
    let session = blocking(move || session(at, OURS)).await?;
    let block_bytes = count(cluster, node, "/kv/block_bytes").await?;
    LeaseTicket::from_bytes(&hired.lease.ticket).map_err(|e| format!("ticket: {e}"))?;
    let ticket = fields(&hired.lease.ticket);
    let first = hired.lease.block_ids.iter().min().copied().ok_or("no blocks were lent")?;
    let last = hired.lease.block_ids.iter().max().copied().unwrap_or(first);
    let lent = (u64::from(first) * block_bytes, (u64::from(last) + 1) * block_bytes);
    let mut liar = Liar { cluster, node, at, session, ticket, lent, openings: 0 };
    let mut outcomes = liar.refused_slices().await;
    outcomes.extend(liar.broken_frames().await);
    outcomes.extend(liar.stolen_streams().await);
    outcomes.push(("a notice whose length passes its end".into(), liar.broken_session().await));
    Ok(outcomes)
}

impl Liar<'_> {
    /// Slices that are turned away one by one, over a stream that goes on.
    async fn refused_slices(&mut self) -> Vec<Outcome> {
        let ([generation, lease, key], (start, end)) = (self.ticket, self.lent);
        let inside = vec![(start, 16)];
        let cases: Vec<Slice> = vec![
            ("another generation", [generation ^ 1, lease, key], inside.clone(), status::STALE),
            ("another lease", [generation, lease + 1, key], inside.clone(), status::STALE),
            ("another key", [generation, lease, key ^ 1], inside.clone(), status::STALE),
            ("a length past the end of the lease", self.ticket, vec![(end - 8, 16)], status::OUTSIDE),
            ("a range behind the lease", self.ticket, vec![(end, 16)], status::OUTSIDE),
            ("an offset near the end of all numbers", self.ticket, vec![(u64::MAX - 7, 16)], status::OUTSIDE),
            ("one range inside and one outside", self.ticket, vec![(start, 16), (end, 16)], status::OUTSIDE),
            // And the stream still carries what is right.
            ("a slice that is right", self.ticket, inside, status::OK),
        ];
        let before = count(self.cluster, self.node, "/kv/frames_refused").await;
        let bad = cases.iter().filter(|case| case.3 != status::OK).count() as u64;
        let frame = |(n, (_, ticket, ranges, _)): (usize, &Slice)| {
            let length: u32 = ranges.iter().map(|r| r.1).sum();
            [Head::new(WRITE, n as u64, *ticket, ranges).sealed(), vec![0xee; length as usize]].concat()
        };
        let frames: Vec<Vec<u8>> = cases.iter().enumerate().map(frame).collect();
        let acks = match self.open().await {
            Err(e) => Err(e),
            Ok(mut socket) => {
                blocking(move || {
                    let send = |frame: Vec<u8>| {
                        socket.write_all(&frame)?;
                        read_ack(&mut socket)
                    };
                    frames.into_iter().map(send).collect::<std::io::Result<Vec<_>>>()
                })
                .await
            }
        };
        let acks = match acks {
            Ok(acks) => acks,
            Err(e) => return vec![("slices".into(), Err(e))],
        };
        let mut outcomes: Vec<Outcome> = Vec::new();
        for (n, ((name, _, _, expected), ack)) in cases.into_iter().zip(acks).enumerate() {
            let right = ack == (n as u64, expected);
            let outcome = if right { Ok(()) } else { Err(format!("{ack:?} was acknowledged, not {expected}")) };
            outcomes.push((name.into(), outcome));
        }
        let counted = match (before, count(self.cluster, self.node, "/kv/frames_refused").await) {
            (Ok(before), Ok(after)) if after - before == bad => Ok(()),
            other => Err(format!("{bad} slices were refused, counted: {other:?}")),
        };
        outcomes.push(("the count of refused slices".into(), counted));
        outcomes
    }

    /// Frames after which nothing that follows can be believed: their stream is closed, the session stands.
    async fn broken_frames(&mut self) -> Vec<Outcome> {
        let range = [(self.lent.0, 16)];
        let head = || Head::new(WRITE, 1, self.ticket, &range);
        let mut unsealed = head().sealed();
        unsealed[65] ^= 1;
        let cases: Vec<(&str, Vec<u8>)> = vec![
            ("random bytes for a frame", vec![0xa7; 256]),
            ("a frame whose checksum does not fit", unsealed),
            ("a frame of no known kind", Head::new(77, 1, self.ticket, &[]).sealed()),
            ("a frame that says more bytes than its ranges", head().with(4, &17u32.to_le_bytes()).sealed()),
            ("a frame of 4 GiB", head().with(4, &u32::MAX.to_le_bytes()).sealed()),
            ("a frame of 65,535 ranges", head().with(2, &u16::MAX.to_le_bytes()).sealed()),
        ];
        let mut outcomes = Vec::new();
        for (name, frame) in cases {
            outcomes.push((name.to_owned(), self.breaks_its_stream(frame).await));
        }
        outcomes
    }

    async fn breaks_its_stream(&mut self, frame: Vec<u8>) -> Result<(), String> {
        let mut socket = self.open().await?;
        let of = |reason: &str| format!("/sessions/{reason}");
        let before = count(self.cluster, self.node, &of("rejected/stream")).await?;
        let lost = count(self.cluster, self.node, &of("lost")).await?;
        let closed = blocking(move || {
            socket.write_all(&frame)?;
            Ok(closes(&mut socket))
        })
        .await?;
        if !closed {
            return Err("its stream was not closed".into());
        }
        match count(self.cluster, self.node, &of("rejected/stream")).await? - before {
            1 => {}
            n => return Err(format!("counted {n} times")),
        }
        let now = count(self.cluster, self.node, &of("lost")).await?;
        if now == lost { Ok(()) } else { Err("the session went with it".into()) }
    }

    /// Streams of the session that somebody else opens, or opens again.
    async fn stolen_streams(&mut self) -> Vec<Outcome> {
        let (id, token, at, taken) = (self.session.id, self.session.token, self.at, self.openings);
        let mut wrong = token;
        wrong[3] ^= 1;
        let cases = [
            ("a stream with a wrong token", stream_hello(id, wrong, taken + 1), refused::UNKNOWN_SESSION),
            ("a stream under a number that is over", stream_hello(id, token, taken), refused::FENCED),
        ];
        let mut outcomes = Vec::new();
        for (name, hello, code) in cases {
            let answer = blocking(move || {
                let mut socket = dial(at)?;
                socket.write_all(&hello)?;
                read_message(&mut socket)
            })
            .await;
            let outcome = match answer {
                Ok(answer) if answer.starts_with(&[says::REFUSE, code]) => Ok(()),
                other => Err(format!("was answered {other:?}")),
            };
            outcomes.push((name.to_owned(), outcome));
        }
        outcomes
    }

    /// A control message that breaks the protocol ends the session: what it says cannot be believed any more.
    async fn broken_session(&mut self) -> Result<(), String> {
        let before = count(self.cluster, self.node, "/sessions/rejected/session").await?;
        let mut control = self.session.control.try_clone().map_err(|e| e.to_string())?;
        let closed = blocking(move || {
            // A payload of 65,535 bytes, of which three come.
            let notice = [&[14][..], &1u64.to_le_bytes(), &u16::MAX.to_le_bytes(), b"end"].concat();
            control.write_all(&message(&notice))?;
            Ok(closes(&mut control))
        })
        .await?;
        if !closed {
            return Err("the session was not closed".into());
        }
        match count(self.cluster, self.node, "/sessions/rejected/session").await? - before {
            1 => Ok(()),
            n => Err(format!("counted {n} times")),
        }
    }

    /// The session's stream under its next number; the place of one that was closed may take a moment to be free.
    async fn open(&mut self) -> Result<std::net::TcpStream, String> {
        let mut last = String::new();
        for _ in 0..100 {
            // A heartbeat: our silence is none of the lies.
            self.session.control.write_all(&heartbeat()).map_err(|e| format!("the session is over: {e}"))?;
            self.openings += 1;
            let (at, number) = (self.at, self.openings);
            let hello = stream_hello(self.session.id, self.session.token, number);
            let opened = blocking(move || {
                let mut socket = dial(at)?;
                socket.write_all(&hello)?;
                let answer = read_message(&mut socket)?;
                Ok((socket, answer))
            });
            match opened.await {
                Ok((socket, answer)) if answer == [says::STREAM_WELCOME] => return Ok(socket),
                other => last = format!("{other:?}"),
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        Err(format!("no stream could be opened: {last}"))
    }
}
