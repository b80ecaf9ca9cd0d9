//! What of one job's KV has been handed to the transfer engine, and handing over what can follow.
//!
//! Two threads have news: the step thread has computed a layer, the courier has found the decode node or got a grant. Either
//! hands over what can go at once, under the job's short lock, and leaves the transfer for the courier to await: so a layer
//! is on its way before any task is woken. Nothing here waits.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use kvrail_engine::BlockId;
use kvrail_kv::KvFormat;
use kvrail_node::{Failure, FailureCode};
use kvrail_transfer::{
    Class, Direction, Engine, LeaseTicket, Op, Peer, Region, SubmitError, TenantId, Transfer, TransferRequest,
};

use crate::handoff::{self, Computed, Cursor, Piece};

/// From here to the decode node.
pub(crate) struct Route {
    pub engine: Engine,
    /// Where the blocks lie.
    pub region: Region,
    pub peer: Peer,
}

/// Blocks that the decode node has lent.
pub(crate) struct Grant {
    /// Indices in the prompt's chain.
    pub blocks: Range<u32>,
    pub ticket: LeaseTicket,
    /// The decode node's numbers of them.
    pub ids: Vec<BlockId>,
}

/// Work for the transfer engine under one grant.
struct Parcel {
    grant: usize,
    ops: Arc<Vec<Op>>,
    pieces: Vec<Piece>,
}

/// A parcel that the transfer engine has accepted.
pub(crate) struct Sent {
    pub transfer: Transfer,
    pub pieces: Vec<Piece>,
}

/// What the courier is to know of the last hand-overs.
#[derive(Default)]
pub(crate) struct Dispatched {
    /// Accepted since the last look.
    pub sent: Vec<Sent>,
    /// The transfer engine was full: what is left waits for room.
    pub full: bool,
    /// It will never take the rest.
    pub failed: Option<Failure>,
}

/// The hand-over of one job.
pub(crate) struct Dispatch {
    format: KvFormat,
    /// Tokens of the job.
    total: u32,
    deadline: Instant,
    route: Option<Route>,
    grants: Vec<Grant>,
    /// Leading blocks of the chain that are at the decode node, or have a place there.
    granted: u32,
    cursor: Cursor,
    parcels: VecDeque<Parcel>,
    news: Dispatched,
    closed: bool,
}

impl Dispatch {
    /// Nothing handed over; the decode node holds `held` leading blocks, the rest is due by `deadline`.
    pub(crate) fn new(format: KvFormat, held: u32, total: u32, deadline: Instant) -> Self {
        Self {
            cursor: Cursor::new(held * format.block_tokens, &format),
            format,
            total,
            deadline,
            route: None,
            grants: Vec::new(),
            granted: held,
            parcels: VecDeque::new(),
            news: Dispatched::default(),
            closed: false,
        }
    }

    /// The decode node is known.
    pub(crate) fn connected(&mut self, route: Route) {
        self.route = Some(route);
    }

    /// Leading blocks of the chain that have a place.
    pub(crate) fn granted(&self) -> u32 {
        self.granted
    }

    /// The blocks that follow [`granted`](Self::granted) have been lent.
    pub(crate) fn grant(&mut self, grant: Grant) {
        self.granted = grant.blocks.end;
        self.grants.push(grant);
    }

    /// Everything has been accepted by the transfer engine, and the courier awaits all of it.
    pub(crate) fn is_done(&self) -> bool {
        self.cursor.done() >= self.total && self.parcels.is_empty() && self.news.sent.is_empty()
    }

    /// What the courier does not know yet.
    pub(crate) fn take_news(&mut self) -> Dispatched {
        std::mem::take(&mut self.news)
    }

    /// Nothing is handed over from here on.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Hands what is computed and has a place to the transfer engine. `table` gives the job's blocks in chain order.
    pub(crate) fn push(&mut self, computed: Computed, table: &[BlockId]) {
        let Some(route) = self.route.as_ref().filter(|_| !self.closed && self.news.failed.is_none()) else { return };
        self.news.full = false;
        if self.parcels.is_empty() {
            let granted = self.granted.saturating_mul(self.format.block_tokens).min(self.total);
            let pieces = self.cursor.advance(computed.within(granted));
            self.parcels.extend(pack(&self.format, &pieces, &self.grants, table));
        }
        while let Some(parcel) = self.parcels.front() {
            let request = TransferRequest {
                region: &route.region,
                ticket: &self.grants[parcel.grant].ticket,
                direction: Direction::Write,
                ops: Arc::clone(&parcel.ops),
                class: Class::KvHandoff,
                tenant: TenantId::default(),
                deadline: self.deadline,
                checksum: None,
                notify: None,
            };
            match route.engine.submit(&route.peer, request) {
                Ok(transfer) => {
                    let pieces = self.parcels.pop_front().map(|parcel| parcel.pieces).unwrap_or_default();
                    self.news.sent.push(Sent { transfer, pieces });
                }
                Err(SubmitError::WouldExceed { .. }) => {
                    self.news.full = true;
                    return;
                }
                Err(error) => {
                    self.news.failed = Some(refused(&error));
                    return;
                }
            }
        }
    }
}

fn refused(error: &SubmitError) -> Failure {
    let code = match error {
        SubmitError::Hopeless => FailureCode::DeadlineExceeded,
        SubmitError::PeerLost => FailureCode::PeerLost,
        SubmitError::OutsideLease { .. } | SubmitError::WrongAccess | SubmitError::WrongPeer { .. } => {
            FailureCode::InvalidRequest
        }
        SubmitError::Stopped => FailureCode::Draining,
        _ => FailureCode::TransferFailed,
    };
    Failure::new(code, error.to_string())
}

/// Cuts pieces at the borders of grants and makes one parcel a grant. All of the pieces' blocks have been lent.
fn pack(format: &KvFormat, pieces: &[Piece], grants: &[Grant], table: &[BlockId]) -> Vec<Parcel> {
    let mut parcels: Vec<Parcel> = Vec::new();
    for (number, grant) in grants.iter().enumerate() {
        let lent = grant.blocks.start * format.block_tokens..grant.blocks.end.saturating_mul(format.block_tokens);
        let (mut ops, mut mine) = (Vec::new(), Vec::new());
        for piece in pieces {
            let tokens = piece.tokens.start.max(lent.start)..piece.tokens.end.min(lent.end);
            if tokens.is_empty() {
                continue;
            }
            let piece = Piece { tokens, layers: piece.layers.clone() };
            let blocks = piece.blocks(format);
            let local = &table[blocks.start as usize..blocks.end as usize];
            let remote = &grant.ids[(blocks.start - grant.blocks.start) as usize..];
            ops.extend(handoff::ops(format, &piece, local, &remote[..blocks.len()]));
            mine.push(piece);
        }
        if !mine.is_empty() {
            parcels.push(Parcel { grant: number, ops: Arc::new(ops), pieces: mine });
        }
    }
    parcels
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kvrail_kv::DType;
    use kvrail_transfer::{Access, ByteRange, EngineConfig, Lease, LeaseRequest, MemoryKind};

    use super::*;

    const FORMAT: KvFormat = KvFormat { layers: 3, kv_heads: 2, head_dim: 4, block_tokens: 4, dtype: DType::F16 };
    const BLOCKS: usize = 4;

    /// A prefill node's and a decode node's engine and pool, connected; all of the latter is lent.
    async fn two_nodes() -> (Route, Region, Engine, Lease) {
        let [here, there] = [(); 2].map(|()| Engine::start(EngineConfig::default()).expect("an engine"));
        let bytes = BLOCKS * FORMAT.block_bytes() as usize;
        let [region, pool] =
            [&here, &there].map(|engine| engine.allocate(bytes, MemoryKind::Shared).expect("a region"));
        region.write(0, &(0..bytes).map(|i| i as u8 | 1).collect::<Vec<_>>());
        let ranges = vec![ByteRange { offset: 0, len: bytes as u64 }];
        let lease = LeaseRequest { region: &pool, ranges, access: Access::Write, ttl: Duration::from_secs(60) };
        let lease = there.grant(lease).expect("a lease");
        let peer = here.connect(there.local_addr(), None).await.expect("a session");
        (Route { engine: here, region, peer }, pool, there, lease)
    }

    fn layers(layers: u32) -> Computed {
        Computed { done: 0, chunk_end: 8, layers }
    }

    #[tokio::test]
    async fn a_layer_goes_when_it_is_computed_and_has_a_place_and_goes_once() {
        let (route, pool, _there, lease) = two_nodes().await;
        let region = route.region.clone();
        let mut dispatch = Dispatch::new(FORMAT, 0, 8, Instant::now() + Duration::from_secs(20));
        let table = [BlockId(2), BlockId(3)];
        dispatch.push(layers(1), &table);
        assert!(dispatch.take_news().sent.is_empty(), "nobody to send to");
        dispatch.connected(route);
        dispatch.push(layers(1), &table);
        assert!(dispatch.take_news().sent.is_empty(), "no place for it");

        dispatch.grant(Grant { blocks: 0..2, ticket: lease.ticket(), ids: vec![BlockId(1), BlockId(0)] });
        dispatch.push(layers(1), &table);
        dispatch.push(layers(1), &table);
        dispatch.push(layers(3), &table);
        assert!(!dispatch.is_done(), "accepted, but nobody awaits it yet");
        let sent = dispatch.take_news().sent;
        assert_eq!(sent.len(), 2, "one layer, then two");
        assert!(dispatch.is_done());
        for sent in sent {
            let report = sent.transfer.await;
            assert_eq!(report.status, Ok(()));
            assert!(report.last_landed.is_some());
        }
        let block = |region: &Region, block: u64| {
            let mut bytes = vec![0; FORMAT.block_bytes() as usize];
            region.read(block * FORMAT.block_bytes(), &mut bytes);
            bytes
        };
        assert_eq!([block(&pool, 1), block(&pool, 0)], [block(&region, 2), block(&region, 3)]);
        assert_eq!(block(&pool, 2), vec![0; FORMAT.block_bytes() as usize]);
    }

    #[tokio::test]
    async fn what_the_engine_refuses_is_told_once_and_nothing_follows() {
        let (route, _pool, _there, lease) = two_nodes().await;
        let mut dispatch = Dispatch::new(FORMAT, 0, 8, Instant::now() + Duration::from_secs(20));
        dispatch.connected(route);
        // Past the end of what was lent.
        dispatch.grant(Grant { blocks: 0..2, ticket: lease.ticket(), ids: vec![BlockId(7), BlockId(8)] });
        let table = [BlockId(0), BlockId(1)];
        dispatch.push(layers(1), &table);
        let failed = dispatch.news.failed.as_ref().expect("refused");
        assert_eq!(failed.code, FailureCode::InvalidRequest);
        dispatch.push(layers(2), &table);
        assert!(dispatch.take_news().sent.is_empty());
    }

    #[tokio::test]
    async fn nothing_goes_once_it_is_closed() {
        let (route, _pool, _there, lease) = two_nodes().await;
        let mut dispatch = Dispatch::new(FORMAT, 0, 8, Instant::now() + Duration::from_secs(20));
        dispatch.connected(route);
        dispatch.grant(Grant { blocks: 0..2, ticket: lease.ticket(), ids: vec![BlockId(0), BlockId(1)] });
        dispatch.close();
        dispatch.push(layers(1), &[BlockId(0), BlockId(1)]);
        assert!(dispatch.take_news().sent.is_empty());
    }
}
