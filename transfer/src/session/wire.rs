//! Messages of the control connection and of a stream's first exchange.
//!
//! Each is a magic number, a length and a body of at most [`BODY_MAX`] bytes. Data streams speak two of them
//! ([`Message::StreamHello`], [`Message::StreamWelcome`]) before their frames begin. A one-sided rail goes on in messages:
//! its bytes do not come over the stream, only what its two ends have to agree on.

use crate::core::STREAMS_MAX;
use crate::plan::{Demand, Limit, PortId};
use crate::session::codec::{DecodeError, Reader, Writer};
use crate::session::parts::{
    kind_byte, kind_of, put_check, put_identity, put_stream, take_borrow, take_check, take_demand, take_identity,
    take_index, take_keys, take_limit, take_port, take_stream, transport_bit,
};
use crate::session::rails::{FarRail, put_rails, take_rails};
use crate::telemetry::Rejection;
use crate::transport::TransportKind;
use crate::transport::onesided::Key;

/// First bytes of every message: anything else on the port is told apart at once.
pub(crate) const MAGIC: [u8; 4] = *b"kvr\x01";
pub(crate) const PREFIX_BYTES: usize = 8;
pub(crate) const BODY_MAX: usize = 8192;
/// Protocol versions that this build speaks.
pub(crate) const VERSIONS: (u16, u16) = (1, 2);
/// From this version on receivers give credit: [`Message::Port`], [`Message::Demand`], [`Message::Limit`].
pub(crate) const CREDITS_SINCE: u16 = 2;
/// And in which one-sided rails vouch for what they bring, and lend keys that open no more than they must. Before, there are none.
pub(crate) const ONE_SIDED_SINCE: u16 = 2;

/// Which host a process runs on, and as whom: equal on both sides means that shared memory may work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostId {
    pub(crate) boot: [u8; 16],
    pub(crate) user: u32,
}

/// What an engine says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) generation: u64,
    pub(crate) host: HostId,
    /// Port that it listens on: with the address it names the place where this engine lives.
    pub(crate) port: u16,
    /// Bit per [`TransportKind`].
    pub(crate) transports: u8,
    /// Streams of a transport that it wants.
    pub(crate) streams: u8,
}

impl Identity {
    /// Shared memory would do, if only both ran as the same user.
    pub(crate) fn is_of_other_user(&self, peer: &Self) -> bool {
        let both = self.transports & peer.transports & transport_bit(TransportKind::Shm) != 0;
        both && self.host.boot == peer.host.boot && self.host.user != peer.host.user
    }
}

/// One stream of a session under one opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StreamId {
    pub(crate) kind: TransportKind,
    pub(crate) index: u8,
    /// Counts openings: a fence of an old one does not touch a new one.
    pub(crate) incarnation: u32,
}

/// Why a peer is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RefuseCode {
    NotAnEngine = 1,
    Version = 2,
    TooManyPeers = 3,
    NoTransport = 4,
    Myself = 5,
    UnknownSession = 6,
    Fenced = 7,
    Timeout = 8,
}

impl From<RefuseCode> for Rejection {
    fn from(code: RefuseCode) -> Self {
        match code {
            RefuseCode::NotAnEngine => Self::NotAnEngine,
            RefuseCode::Version => Self::Version,
            RefuseCode::TooManyPeers => Self::TooMany,
            RefuseCode::NoTransport => Self::NoTransport,
            RefuseCode::Myself => Self::Myself,
            RefuseCode::UnknownSession => Self::UnknownSession,
            RefuseCode::Fenced => Self::Fenced,
            RefuseCode::Timeout => Self::Timeout,
        }
    }
}

impl RefuseCode {
    fn from_byte(byte: u8) -> Result<Self, DecodeError> {
        Ok(match byte {
            1 => Self::NotAnEngine,
            2 => Self::Version,
            3 => Self::TooManyPeers,
            4 => Self::NoTransport,
            5 => Self::Myself,
            6 => Self::UnknownSession,
            7 => Self::Fenced,
            8 => Self::Timeout,
            _ => return Err(DecodeError),
        })
    }
}

/// A question to the owner of memory that was written or read behind its back: what is the CRC32 of it there?
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    /// Quoted in the answer.
    pub(crate) id: u64,
    pub(crate) generation: u64,
    pub(crate) lease: u64,
    pub(crate) key: u64,
    /// Read or written.
    pub(crate) read: bool,
    /// What was sent, if it was written.
    pub(crate) crc: Option<u32>,
    /// Offset and length each.
    pub(crate) ranges: Vec<(u64, u32)>,
}

/// The wish to use a lease over a one-sided rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Borrow {
    pub(crate) generation: u64,
    pub(crate) lease: u64,
    pub(crate) key: u64,
    /// To read or to write.
    pub(crate) read: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// First word of who dials.
    Hello {
        versions: (u16, u16),
        me: Identity,
    },
    /// Answer: the version chosen, who is here, and where TCP streams may be dialled (none: where this came from). Nothing is
    /// bound yet.
    Offer {
        version: u16,
        me: Identity,
        rails: Vec<FarRail>,
        /// Rail numbers of its RDMA NICs.
        nics: Vec<u16>,
    },
    /// The dialler wants the session; a session of that number that it no longer has is to be ended first.
    Commit {
        supersede: u64,
    },
    /// The session exists. Streams are opened with the token.
    Welcome {
        session: u64,
        token: [u8; 16],
        unix: Vec<u8>,
    },
    /// A session with you exists already.
    Exists {
        session: u64,
    },
    /// You dialled me while I dialled you: mine is the one that goes on.
    Yield,
    Refuse {
        code: RefuseCode,
        versions: (u16, u16),
    },
    StreamHello {
        session: u64,
        token: [u8; 16],
        stream: StreamId,
        /// Over RDMA: which of your NICs, by its place in your offer.
        nic: u8,
    },
    StreamWelcome,
    /// I live, and have heard so many of the session's messages.
    Heartbeat {
        heard: u64,
    },
    /// Close this stream (and older openings of it); answer when nothing of it can touch memory.
    FenceStream(StreamId),
    StreamFenced(StreamId),
    /// Please dial this stream again.
    OpenStream {
        kind: TransportKind,
        index: u8,
    },
    Notify {
        seq: u64,
        payload: Vec<u8>,
    },
    NotifyAck {
        seq: u64,
        accepted: bool,
    },
    /// The same as `Notify`, when each of these streams has vouched for what it brought.
    NotifyBehind {
        seq: u64,
        payload: Vec<u8>,
        streams: Vec<(TransportKind, u8)>,
    },
    Bye,
    /// One-sided rails: make the other end of this queue pair.
    PairRequest {
        address: Vec<u8>,
    },
    /// This is it.
    PairReply {
        address: Vec<u8>,
    },
    Check(Check),
    Checked {
        id: u64,
        /// Of `transport::frame::Status`.
        status: u8,
        crc: u32,
    },
    /// One-sided rails: I hold a ticket and want to use the lease over this rail.
    Borrow(Borrow),
    /// Here are its keys, by offset, or why not.
    Lent {
        lease: u64,
        /// Of `transport::frame::Status`.
        status: u8,
        keys: Vec<Key>,
    },
    /// A message of the session, and how many of the other side's have been heard.
    Numbered {
        number: u64,
        heard: u64,
        body: Vec<u8>,
    },
    /// The session goes on over this connection.
    Resume {
        session: u64,
        token: [u8; 16],
        heard: u64,
    },
    Resumed {
        heard: u64,
    },
    /// This stream of ours ends at a NIC of mine, by its number.
    Port {
        kind: TransportKind,
        index: u8,
        port: PortId,
    },
    /// What I have sent to a NIC of yours, and have still to send.
    Demand {
        port: PortId,
        demand: Demand,
    },
    /// What you may send to a NIC of mine.
    Limit {
        port: PortId,
        limit: Limit,
    },
    /// I want it back.
    Recall {
        lease: u64,
    },
    /// Nothing under it is under way any more; so many bytes were moved.
    Returned {
        lease: u64,
        landed: u64,
    },
}

impl Message {
    /// The message with its prefix.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(96);
        w.raw(&MAGIC);
        w.u32(0);
        match self {
            Self::Hello { versions, me } => {
                w.u8(1);
                w.u16(versions.0);
                w.u16(versions.1);
                put_identity(&mut w, me);
            }
            Self::Offer { version, me, rails, nics } => {
                w.u8(2);
                w.u16(*version);
                put_identity(&mut w, me);
                put_rails(&mut w, rails);
                w.u8(nics.len() as u8);
                nics.iter().for_each(|rail| w.u16(*rail));
            }
            Self::Commit { supersede } => {
                w.u8(3);
                w.u64(*supersede);
            }
            Self::Welcome { session, token, unix } => {
                w.u8(4);
                w.u64(*session);
                w.raw(token);
                w.bytes(unix);
            }
            Self::Exists { session } => {
                w.u8(5);
                w.u64(*session);
            }
            Self::Yield => w.u8(6),
            Self::Refuse { code, versions } => {
                w.u8(7);
                w.u8(*code as u8);
                w.u16(versions.0);
                w.u16(versions.1);
            }
            Self::StreamHello { session, token, stream, nic } => {
                w.u8(8);
                w.u64(*session);
                w.raw(token);
                put_stream(&mut w, stream);
                w.u8(*nic);
            }
            Self::StreamWelcome => w.u8(9),
            Self::Heartbeat { heard } => {
                w.u8(10);
                w.u64(*heard);
            }
            Self::FenceStream(stream) => {
                w.u8(11);
                put_stream(&mut w, stream);
            }
            Self::StreamFenced(stream) => {
                w.u8(12);
                put_stream(&mut w, stream);
            }
            Self::OpenStream { kind, index } => {
                w.u8(13);
                w.u8(kind_byte(*kind));
                w.u8(*index);
            }
            Self::Notify { seq, payload } => {
                w.u8(14);
                w.u64(*seq);
                w.bytes(payload);
            }
            Self::NotifyBehind { seq, payload, streams } => {
                w.u8(31);
                w.u64(*seq);
                w.bytes(payload);
                w.u16(streams.len() as u16);
                for (kind, index) in streams {
                    w.u8(kind_byte(*kind));
                    w.u8(*index);
                }
            }
            Self::NotifyAck { seq, accepted } => {
                w.u8(15);
                w.u64(*seq);
                w.u8(u8::from(*accepted));
            }
            Self::Bye => w.u8(16),
            Self::PairRequest { address } => {
                w.u8(17);
                w.bytes(address);
            }
            Self::PairReply { address } => {
                w.u8(18);
                w.bytes(address);
            }
            Self::Check(check) => {
                w.u8(19);
                put_check(&mut w, check);
            }
            Self::Checked { id, status, crc } => {
                w.u8(20);
                w.u64(*id);
                w.u8(*status);
                w.u32(*crc);
            }
            Self::Borrow(borrow) => {
                w.u8(21);
                w.u64(borrow.generation);
                w.u64(borrow.lease);
                w.u64(borrow.key);
                w.u8(u8::from(borrow.read));
            }
            Self::Lent { lease, status, keys } => {
                w.u8(22);
                w.u64(*lease);
                w.u8(*status);
                w.u16(keys.len() as u16);
                for Key { offset, len, key, address } in keys {
                    w.u64(*offset);
                    w.u64(*len);
                    w.u32(*key);
                    w.u64(*address);
                }
            }
            Self::Numbered { number, heard, body } => {
                w.u8(25);
                w.u64(*number);
                w.u64(*heard);
                w.bytes(body);
            }
            Self::Resume { session, token, heard } => {
                w.u8(26);
                w.u64(*session);
                w.raw(token);
                w.u64(*heard);
            }
            Self::Resumed { heard } => {
                w.u8(27);
                w.u64(*heard);
            }
            Self::Port { kind, index, port } => {
                w.u8(28);
                w.u8(kind_byte(*kind));
                w.u8(*index);
                w.u8(port.0);
            }
            Self::Demand { port, demand } => {
                w.u8(29);
                w.u8(port.0);
                w.u64(demand.sequence);
                w.u32(demand.epoch);
                [demand.used, demand.settled, demand.lost, demand.wanted].into_iter().for_each(|bytes| w.u64(bytes));
                w.u32(demand.tenant.0);
            }
            Self::Limit { port, limit } => {
                w.u8(30);
                w.u8(port.0);
                w.u32(limit.epoch);
                w.u64(limit.total);
                w.u32(limit.quantum);
                w.u32(limit.at_once);
            }
            Self::Recall { lease } => {
                w.u8(23);
                w.u64(*lease);
            }
            Self::Returned { lease, landed } => {
                w.u8(24);
                w.u64(*lease);
                w.u64(*landed);
            }
        }
        let mut bytes = w.into_inner();
        let len = (bytes.len() - PREFIX_BYTES) as u32;
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    /// The message without its prefix.
    pub(crate) fn body(&self) -> Vec<u8> {
        self.encode().split_off(PREFIX_BYTES)
    }

    /// Length of the body behind a prefix, if it is one.
    pub(crate) fn body_len(prefix: &[u8; PREFIX_BYTES]) -> Result<usize, DecodeError> {
        let len = u32::from_le_bytes([prefix[4], prefix[5], prefix[6], prefix[7]]) as usize;
        if prefix[..4] != MAGIC || len == 0 || len > BODY_MAX { Err(DecodeError) } else { Ok(len) }
    }

    /// Reads a body; every byte of it must be used.
    pub(crate) fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(body);
        let message = match r.u8()? {
            1 => Self::Hello { versions: (r.u16()?, r.u16()?), me: take_identity(&mut r)? },
            2 => Self::Offer {
                version: r.u16()?,
                me: take_identity(&mut r)?,
                rails: take_rails(&mut r)?,
                nics: (0..r.u8()?).map(|_| r.u16()).collect::<Result<_, _>>()?,
            },
            3 => Self::Commit { supersede: r.u64()? },
            4 => Self::Welcome { session: r.u64()?, token: r.array()?, unix: r.bytes()?.to_vec() },
            5 => Self::Exists { session: r.u64()? },
            6 => Self::Yield,
            7 => Self::Refuse { code: RefuseCode::from_byte(r.u8()?)?, versions: (r.u16()?, r.u16()?) },
            8 => Self::StreamHello { session: r.u64()?, token: r.array()?, stream: take_stream(&mut r)?, nic: r.u8()? },
            9 => Self::StreamWelcome,
            10 => Self::Heartbeat { heard: r.u64()? },
            11 => Self::FenceStream(take_stream(&mut r)?),
            12 => Self::StreamFenced(take_stream(&mut r)?),
            13 => Self::OpenStream { kind: kind_of(r.u8()?)?, index: take_index(&mut r)? },
            14 => Self::Notify { seq: r.u64()?, payload: r.bytes()?.to_vec() },
            15 => Self::NotifyAck { seq: r.u64()?, accepted: r.u8()? != 0 },
            16 => Self::Bye,
            17 => Self::PairRequest { address: r.bytes()?.to_vec() },
            18 => Self::PairReply { address: r.bytes()?.to_vec() },
            19 => Self::Check(take_check(&mut r)?),
            20 => Self::Checked { id: r.u64()?, status: r.u8()?, crc: r.u32()? },
            21 => Self::Borrow(take_borrow(&mut r)?),
            22 => Self::Lent { lease: r.u64()?, status: r.u8()?, keys: take_keys(&mut r)? },
            25 => Self::Numbered { number: r.u64()?, heard: r.u64()?, body: r.bytes()?.to_vec() },
            26 => Self::Resume { session: r.u64()?, token: r.array()?, heard: r.u64()? },
            27 => Self::Resumed { heard: r.u64()? },
            28 => {
                let (kind, index) = (kind_of(r.u8()?)?, r.u8()?);
                if index >= STREAMS_MAX {
                    return Err(DecodeError);
                }
                Self::Port { kind, index, port: take_port(&mut r)? }
            }
            29 => Self::Demand { port: take_port(&mut r)?, demand: take_demand(&mut r)? },
            30 => Self::Limit { port: take_port(&mut r)?, limit: take_limit(&mut r)? },
            31 => {
                let (seq, payload) = (r.u64()?, r.bytes()?.to_vec());
                let count = r.u16()?;
                if count > 2 * u16::from(STREAMS_MAX) {
                    return Err(DecodeError); // more than there are one-sided rails
                }
                let streams = (0..count).map(|_| Ok((kind_of(r.u8()?)?, take_index(&mut r)?)));
                Self::NotifyBehind { seq, payload, streams: streams.collect::<Result<_, _>>()? }
            }
            23 => Self::Recall { lease: r.u64()? },
            24 => Self::Returned { lease: r.u64()?, landed: r.u64()? },
            _ => return Err(DecodeError),
        };
        // A longer body is a later version's: it was not negotiated.
        if r.remaining() == 0 { Ok(message) } else { Err(DecodeError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::TenantId;
    use crate::session::parts::BYTES_END;
    use crate::session::ports::PORTS;

    #[test]
    fn another_user_of_this_machine_is_told_from_another_machine() {
        let me = Identity {
            generation: 1,
            host: HostId { boot: [7; 16], user: 1000 },
            port: 2,
            transports: transport_bit(TransportKind::Shm) | transport_bit(TransportKind::Tcp),
            streams: 4,
        };
        let with = |boot, user| Identity { host: HostId { boot, user }, ..me };
        assert!(me.is_of_other_user(&with([7; 16], 1001)));
        assert!(!me.is_of_other_user(&me) && !me.is_of_other_user(&with([8; 16], 1001)));
        let tcp = Identity { transports: transport_bit(TransportKind::Tcp), ..with([7; 16], 1001) };
        assert!(!me.is_of_other_user(&tcp), "nobody wanted shared memory");
    }

    fn check(crc: Option<u32>) -> Check {
        Check { id: 1, generation: 2, lease: 3, key: 4, read: false, crc, ranges: vec![(5, 6), (1 << 40, u32::MAX)] }
    }

    fn demand(wanted: u64) -> Demand {
        Demand { sequence: 9, epoch: 1, used: 1 << 40, settled: 7, lost: 3, wanted, tenant: TenantId(u32::MAX) }
    }

    fn limit(total: u64) -> Limit {
        Limit { epoch: u32::MAX, total, quantum: 1 << 20, at_once: 1 << 16 }
    }

    fn samples() -> Vec<Message> {
        let host = HostId { boot: [7; 16], user: 1000 };
        let me = Identity { generation: 1, host, port: 2, transports: 3, streams: 4 };
        let stream = StreamId { kind: TransportKind::Tcp, index: 1, incarnation: 9 };
        let rail = FarRail { address: ([10, 0, 0, 1], 7).into(), prefix: 24, rail: None };
        vec![
            Message::Hello { versions: (1, 4), me },
            Message::Offer { version: 1, me, rails: Vec::new(), nics: Vec::new() },
            Message::Offer { version: 1, me, rails: vec![rail, FarRail { rail: Some(0), ..rail }], nics: vec![7, 0] },
            Message::Commit { supersede: 5 },
            Message::Welcome { session: 6, token: [8; 16], unix: b"\0name".to_vec() },
            Message::Exists { session: 6 },
            Message::Yield,
            Message::Refuse { code: RefuseCode::Version, versions: VERSIONS },
            Message::StreamHello { session: 6, token: [8; 16], stream, nic: 3 },
            Message::StreamWelcome,
            Message::Heartbeat { heard: 3 },
            Message::Numbered { number: 9, heard: 8, body: vec![16] },
            Message::Resume { session: 1, token: [2; 16], heard: 3 },
            Message::Resumed { heard: 4 },
            Message::FenceStream(stream),
            Message::StreamFenced(stream),
            Message::OpenStream { kind: TransportKind::Shm, index: 0 },
            Message::Notify { seq: 3, payload: b"hello".to_vec() },
            Message::NotifyAck { seq: 3, accepted: true },
            Message::NotifyBehind { seq: 4, payload: Vec::new(), streams: Vec::new() },
            Message::NotifyBehind {
                seq: 5,
                payload: b"hello".to_vec(),
                streams: vec![(TransportKind::Rdma, 0), (TransportKind::Sim, 7)],
            },
            Message::Bye,
            Message::PairRequest { address: vec![7; 8] },
            Message::PairReply { address: vec![8; 40] },
            Message::Check(check(None)),
            Message::Check(Check { read: true, ..check(Some(0)) }),
            Message::Checked { id: 4, status: 1, crc: 0xdead_beef },
            Message::Borrow(Borrow { generation: 1, lease: 2, key: 3, read: true }),
            Message::Lent {
                lease: 2,
                status: 0,
                keys: vec![
                    Key { offset: 0, len: 9, key: 7, address: 3 },
                    Key { offset: 9, len: 1, key: 8, address: 1 << 60 },
                ],
            },
            Message::Lent { lease: 2, status: 1, keys: Vec::new() },
            Message::Port { kind: TransportKind::Rdma, index: STREAMS_MAX - 1, port: PortId(PORTS - 1) },
            Message::Demand { port: PortId(0), demand: demand(BYTES_END - 1) },
            Message::Limit { port: PortId(1), limit: limit(5) },
            Message::Limit { port: PortId(1), limit: limit(Limit::NONE) },
            Message::Recall { lease: 2 },
            Message::Returned { lease: 2, landed: 1 << 40 },
        ]
    }

    #[test]
    fn messages_come_back_and_cut_ones_are_refused() {
        for message in samples() {
            let bytes = message.encode();
            let len = Message::body_len(bytes.first_chunk().unwrap()).unwrap();
            assert_eq!(len, bytes.len() - PREFIX_BYTES);
            assert_eq!(Message::decode(&bytes[PREFIX_BYTES..]), Ok(message.clone()));
            for cut in PREFIX_BYTES..bytes.len() {
                assert_eq!(Message::decode(&bytes[PREFIX_BYTES..cut]), Err(DecodeError), "{message:?}");
            }
            let mut longer = bytes[PREFIX_BYTES..].to_vec();
            longer.push(0);
            assert_eq!(Message::decode(&longer), Err(DecodeError));
        }
    }

    #[test]
    fn a_stream_beyond_the_last_one_is_refused() {
        for index in [STREAMS_MAX - 1, STREAMS_MAX, u8::MAX] {
            let stream = StreamId { kind: TransportKind::Tcp, index, incarnation: 1 };
            for message in [Message::StreamFenced(stream), Message::OpenStream { kind: TransportKind::Shm, index }] {
                let decoded = Message::decode(&message.encode()[PREFIX_BYTES..]);
                assert_eq!(decoded.is_ok(), index < STREAMS_MAX, "{message:?}");
            }
        }
    }

    #[test]
    fn credit_words_that_cannot_be_are_refused() {
        let port = PortId(0);
        for message in [
            Message::Port { kind: TransportKind::Tcp, index: STREAMS_MAX, port },
            Message::Port { kind: TransportKind::Tcp, index: 0, port: PortId(PORTS) },
            Message::Demand { port: PortId(PORTS), demand: demand(1 << 41) },
            Message::Demand { port, demand: demand(BYTES_END) },
            Message::Demand { port, demand: demand(5) },
            Message::Demand { port, demand: Demand { lost: 8, ..demand(1 << 41) } },
            Message::Demand { port, demand: Demand { settled: 1 << 41, ..demand(1 << 41) } },
            Message::Limit { port: PortId(u8::MAX), limit: limit(0) },
            Message::Limit { port, limit: limit(BYTES_END) },
        ] {
            assert_eq!(Message::decode(&message.body()), Err(DecodeError), "{message:?}");
        }
    }

    #[test]
    fn the_longest_question_fits_a_message() {
        let ranges = vec![(u64::MAX, u32::MAX); crate::transport::PIECES_MAX];
        assert!(Message::Check(Check { ranges, ..check(Some(1)) }).encode().len() <= BODY_MAX);
    }

    #[test]
    fn other_protocols_and_huge_lengths_are_refused_by_the_prefix() {
        for prefix in [*b"GET / HT", [0x16, 3, 1, 2, 0, 1, 0, 1], *b"kvr\x01\xff\xff\xff\x7f", *b"kvr\x01\0\0\0\0"] {
            assert_eq!(Message::body_len(&prefix), Err(DecodeError));
        }
    }
}
