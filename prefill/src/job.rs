//! One request as the step thread and its courier share it: immutable but for how far it is.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvrail_engine::cache::Reservation;
use kvrail_engine::sampling::{Finish, Sampler};
use kvrail_engine::{BlockId, ModelSpec};
use kvrail_kv::{BlockKey, Chain, Namespace, TokenId};
use kvrail_node::{Failure, FailureCode, KvCache, convert};
use kvrail_proto::v1;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::dispatch::Dispatch;
use crate::handoff::Computed;
use crate::queue::Kick;
use crate::schedule::JobId;

/// What the first token's sampling gave.
#[derive(Clone, Debug)]
pub(crate) struct First {
    /// The token, ready for the wire.
    pub token: v1::Token,
    /// Set where the answer ends with it.
    pub finish: Option<Finish>,
    /// Prompt tokens that came out of P's own cache.
    pub cached_tokens: u32,
    /// Duration of the forward steps that computed the rest.
    pub compute: Duration,
}

/// How far a job is, as its courier sees it. A state: looking late loses nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// KV that is there.
    pub computed: Computed,
    /// When the last layer of the last chunk was complete.
    pub last_layer: Option<Instant>,
    /// The end of the computation.
    pub end: Option<Result<First, Failure>>,
}

/// How far a job is, and how far its KV is on its way.
struct State {
    progress: Progress,
    dispatch: Dispatch,
}

/// A request that passed the door.
pub(crate) struct Job {
    pub id: JobId,
    pub request_id: String,
    /// Prompt and forced output.
    pub tokens: Vec<TokenId>,
    /// Keys of the complete blocks of `tokens`.
    pub chain: Vec<BlockKey>,
    /// Leading blocks that D holds.
    pub held: u32,
    /// Its history holds the forced output.
    pub sampler: Sampler,
    pub arrived: Instant,
    state: Mutex<State>,
    /// Told when the courier should look.
    news: Notify,
    /// Set once, when it gets its blocks.
    pub blocks: OnceLock<Blocks>,
    compute_us: AtomicU64,
}

impl Job {
    /// Checks a request against the model. `pool_blocks` bounds what could ever be computed here.
    ///
    /// # Errors
    /// `invalid_request` or `too_long`, naming the field.
    pub(crate) fn new(
        id: JobId,
        start: v1::PrefillStart,
        spec: &ModelSpec,
        namespace: &Namespace,
        pool_blocks: u32,
        deadline: Instant,
    ) -> Result<Self, Failure> {
        let invalid = |message: String| Failure::new(FailureCode::InvalidRequest, message);
        let (format, total) = (&spec.format, start.tokens.len());
        if start.prompt_tokens == 0 || start.prompt_tokens as usize > total {
            return Err(invalid(format!("`prompt_tokens` is {}; it must be 1 to {total}", start.prompt_tokens)));
        }
        // The last position of the context is left for a token to follow.
        if total >= spec.context_tokens as usize {
            let message =
                format!("{total} tokens; the context holds {}, one of them for the answer", spec.context_tokens);
            return Err(Failure::new(FailureCode::TooLong, message));
        }
        let total = total as u32;
        if format.blocks_for(total) > pool_blocks {
            let message = format!("{total} tokens; the pool holds {}", pool_blocks * format.block_tokens);
            return Err(Failure::new(FailureCode::TooLong, message));
        }
        convert::check_tokens("tokens", &start.tokens, spec)?;
        if start.blocks_held > total / format.block_tokens {
            let most = total / format.block_tokens;
            return Err(invalid(format!("`blocks_held` is {}; {total} tokens fill {most} blocks", start.blocks_held)));
        }
        let (prompt, forced) = start.tokens.split_at(start.prompt_tokens as usize);
        let (params, stop) = (convert::sampling(start.sampling, spec)?, convert::stop_rule(start.stop, spec)?);
        let mut sampler = Sampler::new(params, stop, prompt).map_err(|error| invalid(error.to_string()))?;
        for (index, &token) in forced.iter().enumerate() {
            if sampler.push(token).is_some() {
                return Err(invalid(format!("the answer ended with its forced token number {index}; nothing follows")));
            }
        }
        Ok(Self {
            id,
            request_id: start.request_id,
            chain: Chain::keys(namespace, format.block_tokens, &start.tokens),
            held: start.blocks_held,
            tokens: start.tokens,
            sampler,
            arrived: Instant::now(),
            state: Mutex::new(State {
                progress: Progress::default(),
                dispatch: Dispatch::new(*format, start.blocks_held, total, deadline),
            }),
            news: Notify::new(),
            blocks: OnceLock::new(),
            compute_us: AtomicU64::new(0),
        })
    }

    /// Number of tokens.
    pub(crate) fn total(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Publishes how far it is, and hands over what of it can go.
    pub(crate) fn publish(&self, change: impl FnOnce(&mut Progress)) {
        self.with(|progress, _| change(progress));
        self.news.notify_one();
    }

    /// Lets `f` look at how far it is and change its hand-over, then hands over what can go.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Progress, &mut Dispatch) -> R) -> R {
        let mut state = self.state.lock();
        let State { progress, dispatch } = &mut *state;
        let result = f(progress, dispatch);
        // Once the computation has ended with the answer, or without one, nobody needs the KV.
        let needed = progress.end.as_ref().is_none_or(|end| end.as_ref().is_ok_and(|first| first.finish.is_none()));
        if let (true, Some(blocks)) = (needed, self.blocks.get()) {
            dispatch.push(progress.computed, &blocks.table);
        }
        result
    }

    /// Resolves when something was published since it last did.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    /// The keys that a lookup may use: at least one token must be computed to have logits.
    pub(crate) fn reusable(&self, block_tokens: u32) -> &[BlockKey] {
        &self.chain[..((self.total() - 1) / block_tokens) as usize]
    }

    /// Counts a step that computed some of it.
    pub(crate) fn add_compute(&self, took: Duration) {
        self.compute_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    /// Duration of all steps that computed some of it.
    pub(crate) fn compute(&self) -> Duration {
        Duration::from_micros(self.compute_us.load(Ordering::Relaxed))
    }
}

/// The blocks of one job: pinned prefix and own blocks in chain order. Lets go of all of them when dropped, which is when
/// neither the step thread, nor the courier, nor a transfer that may still read them needs them.
pub(crate) struct Blocks {
    cache: KvCache,
    freed: Kick,
    /// In chain order.
    pub table: Vec<BlockId>,
    /// Leading ones that were found in the cache.
    pub cached: u32,
}

impl Blocks {
    /// Pins what is here of the job's prefix and takes the rest; `None` if the pool has not enough.
    pub(crate) fn take(cache: &KvCache, freed: &Kick, job: &Job, block_tokens: u32) -> Option<Self> {
        let blocks = job.total().div_ceil(block_tokens);
        cache.with(|pool| {
            let (table, promised) = pool.admit(job.reusable(block_tokens), blocks).ok()?;
            let cached = table.len() as u32;
            let mut taken = Self { cache: cache.clone(), freed: freed.clone(), table, cached };
            taken.table.extend(Taken { pool, promised: Some(promised) });
            Some(taken)
        })
    }

    /// The blocks `chain[from..to]` are full: others may find them from now on.
    pub(crate) fn complete(&self, chain: &[BlockKey], from: usize, to: usize) {
        self.cache.with(|pool| {
            let mut parent = from.checked_sub(1).map(|before| self.table[before]);
            for (&block, &key) in self.table[from..to].iter().zip(&chain[from..to]) {
                let completed = pool.complete(block, key, parent);
                parent = Some(block);
                if let Err(error) = completed {
                    tracing::error!(%error, "a computed block could not be completed; it will not be reused");
                }
            }
        });
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.cache.with(|pool| {
            // Last first: the pool's free list then gives them out in ascending order, which coalesces.
            for &block in self.table.iter().rev() {
                if let Err(error) = pool.release(block) {
                    tracing::error!(%error, "a block of a request could not be released");
                }
            }
        });
        self.freed.kick();
    }
}

/// Takes all that a reservation promises.
struct Taken<'a> {
    pool: &'a mut kvrail_engine::cache::BlockCache,
    promised: Option<Reservation>,
}

impl Iterator for Taken<'_> {
    type Item = BlockId;

    fn next(&mut self) -> Option<BlockId> {
        self.pool.take(self.promised.as_mut()?).ok()
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(promised) = self.promised.take() {
            self.pool.cancel(promised);
        }
    }
}

#[cfg(test)]
mod tests {
    use kvrail_kv::{DType, KvFormat, NamespaceParts};

    use super::*;

    fn spec() -> ModelSpec {
        ModelSpec {
            name: "m".into(),
            digest: "d".into(),
            numerics: "n".into(),
            vocab: 100,
            context_tokens: 64,
            eos: vec![99],
            format: KvFormat { layers: 1, kv_heads: 1, head_dim: 8, block_tokens: 4, dtype: DType::F16 },
        }
    }

    fn start() -> v1::PrefillStart {
        v1::PrefillStart {
            tokens: (0..10).collect(),
            prompt_tokens: 8,
            blocks_held: 1,
            stop: Some(v1::StopRule { max_tokens: 5, ..Default::default() }),
            ..Default::default()
        }
    }

    fn job(start: v1::PrefillStart) -> Result<Job, Failure> {
        let spec = spec();
        let parts = NamespaceParts { model: "d", format: &spec.format, numerics: "n", adapter: "", salt: "" };
        Job::new(JobId(1), start, &spec, &Namespace::new(&parts), 8, Instant::now())
    }

    #[test]
    fn a_good_request_keeps_its_forced_output() {
        let job = job(start()).expect("valid");
        assert_eq!((job.total(), job.chain.len(), job.held, job.sampler.outputs()), (10, 2, 1, 2));
    }

    #[test]
    fn bad_requests_are_refused_by_name() {
        let refused = |change: fn(&mut v1::PrefillStart)| {
            let mut wire = start();
            change(&mut wire);
            let failure = job(wire).err().expect("refused");
            (failure.code, failure.message)
        };
        let (code, message) = refused(|s| s.prompt_tokens = 0);
        assert!(code == FailureCode::InvalidRequest && message.contains("prompt_tokens"), "{message}");
        let (code, message) = refused(|s| s.tokens = vec![]);
        assert!(code == FailureCode::InvalidRequest && message.contains("prompt_tokens"), "{message}");
        let (code, message) = refused(|s| s.blocks_held = 3);
        assert!(code == FailureCode::InvalidRequest && message.contains("blocks_held"), "{message}");
        let (code, message) = refused(|s| s.tokens = vec![1; 64]);
        assert!(code == FailureCode::TooLong && message.contains("context"), "{message}");
        let (code, message) = refused(|s| s.tokens = vec![1; 33]);
        assert!(code == FailureCode::TooLong && message.contains("pool"), "{message}");
        let (code, message) = refused(|s| s.tokens[3] = 100);
        assert!(code == FailureCode::InvalidRequest && message.contains("place 3"), "{message}");
        let (code, message) = refused(|s| s.tokens[8] = 99);
        assert!(code == FailureCode::InvalidRequest && message.contains("forced token number 0"), "{message}");
        let (code, message) = refused(|s| s.stop = None);
        assert!(code == FailureCode::InvalidRequest && message.contains("max_tokens"), "{message}");
    }
}
