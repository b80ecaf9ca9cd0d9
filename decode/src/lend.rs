//! Lending a request's blocks to a prefill node, and having them back.
//!
//! Law 2 lives here: a lent block is used, given on or given back only after its lease is fenced. The one way back is
//! [`Holding::end_lease`]; a holding that is dropped before quarantines its lent blocks and a background task frees them
//! at the fence, so that no path of a request, cancellation and panic included, can free a block that may still be written.

use std::sync::Arc;
use std::time::Duration;

use kvrail_engine::BlockId;
use kvrail_engine::cache::CacheError;
use kvrail_node::{KvCache, Node};
use kvrail_transfer::{Access, ByteRange, Lease, LeaseError, LeaseRequest};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::holding::Holding;

/// Frees lent blocks in the background.
#[derive(Clone)]
pub struct Fencer {
    runtime: Handle,
    /// Called when blocks became free.
    freed: Arc<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Fencer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fencer")
    }
}

impl Fencer {
    /// Works on the current runtime.
    #[must_use]
    pub fn new(runtime: Handle, freed: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self { runtime, freed }
    }

    /// Revokes leases; resolves with the bytes that landed under them when no more can.
    fn fence(&self, leases: Vec<Lease>) -> JoinHandle<u64> {
        self.runtime.spawn(async move {
            let mut landed = 0;
            for lease in leases {
                landed += lease.revoke().await.bytes_landed;
            }
            landed
        })
    }

    fn free_after(&self, fence: JoinHandle<u64>, cache: KvCache, blocks: Vec<BlockId>) {
        let freed = Arc::clone(&self.freed);
        self.runtime.spawn(async move {
            if fence.await.is_err() {
                tracing::error!(blocks = blocks.len(), "a fence was not reached; its blocks stay in quarantine");
                return;
            }
            cache.with(|c| {
                for &block in &blocks {
                    if let Err(error) = c.unquarantine(block) {
                        tracing::error!(%error, "a fenced block could not be freed");
                    }
                }
            });
            freed();
        });
    }
}

/// The lent end of a block table.
#[derive(Debug)]
pub(crate) struct Lent {
    /// Index of the first lent block in the table.
    from: u32,
    ending: Ending,
    fencer: Fencer,
}

enum Ending {
    Open(Vec<Lease>),
    Fencing(JoinHandle<u64>),
}

impl std::fmt::Debug for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Open(leases) => write!(f, "Open({})", leases.len()),
            Self::Fencing(_) => f.write_str("Fencing"),
        }
    }
}

/// What a prefill node is told about blocks that it may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The transfer engine's ticket.
    pub ticket: Vec<u8>,
    /// The blocks, in chain order.
    pub blocks: Vec<u32>,
}

/// Why blocks could not be lent.
#[derive(Debug, thiserror::Error)]
pub enum LendError {
    /// The headroom is not there.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The transfer engine refuses.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The last lease is being ended.
    #[error("the lease is being ended")]
    Ending,
}

/// The fence was not reached in time: the lent blocks are in quarantine and no part of the holding any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{blocks} lent blocks were not fenced in time")]
pub struct Unfenced {
    /// How many.
    pub blocks: u32,
}

impl Holding {
    /// Takes `count` more blocks and lets a peer write them for at most `ttl`.
    ///
    /// # Errors
    /// [`LendError`]; blocks that were taken are part of the table all the same.
    pub fn lend(&mut self, node: &Node, fencer: &Fencer, count: u32, ttl: Duration) -> Result<Grant, LendError> {
        let first = self.table().len();
        self.grow(first as u32 + count)?;
        let blocks: Vec<u32> = self.table()[first..].iter().map(|b| b.0).collect();
        let len = node.kv().format().block_bytes();
        let ranges =
            self.table()[first..].iter().map(|&b| ByteRange { offset: node.kv().block_offset(b), len }).collect();
        let request = LeaseRequest { region: node.region(), ranges, access: Access::Write, ttl };
        let lease = node.engine().grant(request)?;
        let ticket = lease.ticket().to_bytes().to_vec();
        let lent = self.lent.get_or_insert_with(|| Lent {
            from: first as u32,
            ending: Ending::Open(vec![]),
            fencer: fencer.clone(),
        });
        match &mut lent.ending {
            Ending::Open(leases) => leases.push(lease),
            Ending::Fencing(_) => return Err(LendError::Ending),
        }
        Ok(Grant { ticket, blocks })
    }

    /// Revokes every lease and waits for the fence, after which the blocks are this request's alone. Returns the bytes that
    /// landed under the leases.
    ///
    /// # Errors
    /// [`Unfenced`] after `within`.
    pub async fn end_lease(&mut self, within: Duration) -> Result<u64, Unfenced> {
        let Some(lent) = &mut self.lent else { return Ok(0) };
        if let Ending::Open(leases) = &mut lent.ending {
            lent.ending = Ending::Fencing(lent.fencer.fence(std::mem::take(leases)));
        }
        let Ending::Fencing(fence) = &mut lent.ending else { return Ok(0) };
        match tokio::time::timeout(within, fence).await {
            Ok(Ok(landed)) => {
                self.lent = None;
                Ok(landed)
            }
            Ok(Err(_)) | Err(_) => Err(Unfenced { blocks: self.abandon_lent() }),
        }
    }

    /// Quarantines what is lent; it is freed when it is fenced. Returns how many blocks that are.
    pub(crate) fn abandon_lent(&mut self) -> u32 {
        let Some(Lent { from, ending, fencer }) = self.lent.take() else { return 0 };
        let blocks = self.quarantine_after(from);
        let count = blocks.len() as u32;
        let fence = match ending {
            Ending::Open(leases) => fencer.fence(leases),
            Ending::Fencing(fence) => fence,
        };
        fencer.free_after(fence, self.cache().clone(), blocks);
        count
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Poll;

    use kvrail_engine::mock::MockOptions;
    use kvrail_node::{ModelSource, NodeConfig, PoolSize, Role};
    use kvrail_transfer::LeaseTicket;

    use super::*;

    async fn node() -> Node {
        let model = ModelSource::Mock(MockOptions::default());
        let config = NodeConfig::local("d0", Role::Decode, model, PoolSize::Blocks(8));
        Node::start(config).await.expect("starts").node
    }

    fn fencer() -> (Fencer, Arc<AtomicU32>) {
        let freed = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&freed);
        let count = move || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        (Fencer::new(Handle::current(), Arc::new(count)), freed)
    }

    const TTL: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn blocks_are_lent_chunk_by_chunk_and_come_back_behind_one_fence() {
        let (node, (fencer, freed)) = (node().await, fencer());
        let mut holding = Holding::admit(node.cache(), &[], 5).expect("room");
        let first = holding.lend(&node, &fencer, 2, TTL).expect("lent");
        let second = holding.lend(&node, &fencer, 3, TTL).expect("lent");
        assert_eq!([first.blocks, second.blocks].concat(), holding.table().iter().map(|b| b.0).collect::<Vec<_>>());
        assert!(LeaseTicket::from_bytes(&first.ticket).is_ok());
        assert!(holding.lend(&node, &fencer, 4, TTL).is_err(), "the pool has 8");
        assert_eq!(node.engine().stats().leases, 2);
        assert_eq!(holding.end_lease(TTL).await, Ok(0));
        assert_eq!(node.engine().stats().leases, 0);
        assert_eq!(holding.table().len(), 5, "fenced, and still held");
        assert_eq!(holding.end_lease(TTL).await, Ok(0), "nothing is lent");
        drop(holding);
        assert_eq!(node.cache().counters().free, 8);
        assert_eq!(freed.load(Ordering::Relaxed), 0, "nothing went through quarantine");
    }

    #[tokio::test]
    async fn a_loan_that_is_dropped_goes_through_quarantine() {
        let (node, (fencer, freed)) = (node().await, fencer());
        let mut holding = Holding::admit(node.cache(), &[], 5).expect("room");
        holding.grow(1).expect("promised");
        holding.lend(&node, &fencer, 3, TTL).expect("lent");
        drop(holding);
        // The fence is reached by a task, and none has run since.
        let counters = node.cache().counters();
        assert_eq!((counters.quarantined, counters.free, counters.reserved), (3, 5, 0));
        while freed.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(node.cache().counters().free, 8);
        assert_eq!(node.engine().stats().leases, 0);
    }

    #[tokio::test]
    async fn a_wait_for_the_fence_that_is_dropped_leaves_the_blocks_in_quarantine() {
        let (node, (fencer, freed)) = (node().await, fencer());
        let mut holding = Holding::admit(node.cache(), &[], 3).expect("room");
        holding.lend(&node, &fencer, 3, TTL).expect("lent");
        {
            let mut waiting = std::pin::pin!(holding.end_lease(TTL));
            // Polled once, so that the fence has begun, and dropped.
            let pending = std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await;
            assert!(pending);
        }
        drop(holding);
        assert_eq!(node.cache().counters().quarantined, 3);
        while freed.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(node.cache().counters().free, 8);
    }
}
