//! The built-in CPU executor: GGUF models of the Llama and Qwen2/3 families, straight into the paged cache.
//!
//! Laws:
//! - **One order of arithmetic.** Activations are quantised row by row; each output is one sum in one order; attention
//!   folds tiles of sixteen positions in order. So KV bytes and logits are the same bits whatever the chunking, the
//!   prefix hits, the other sequences of a batch, the number of threads, or the instruction set. Tests assert it.
//! - The file is a stranger's: what it says is checked before it is used, and refused by name.
//!
//! Map: `config`, `weights`, `matrix` from a file to packed weights · `layout` how numbers lie in memory · `forward` the
//! pass · `rope` · `pages` positions to block bytes · `threads` · `simd` kernels, one source for all instruction sets.

mod config;
mod forward;
mod layout;
mod matrix;
mod pages;
mod rope;
mod simd;
mod threads;
mod weights;

use std::path::Path;

use kvrail_gguf::{Gguf, GgufError};
use kvrail_kv::{DType, FormatError, KvFormat};

pub use simd::Isa;

use crate::executor::{Chunk, ExecError, Executor, Logits, ModelSpec, check_batch};
use crate::memory::KvMemory;
use config::Config;
use rope::Rope;
use threads::Threads;
use weights::Weights;

/// Revision of the arithmetic: it changes when, and only when, the golden-logits test does.
const KERNELS: &str = "cpu1";

/// How to load a model.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Tokens of a KV block.
    pub block_tokens: u32,
    /// Element type of the KV cache.
    pub kv_dtype: DType,
    /// Threads that compute, the caller's not among them unless it is one.
    pub threads: usize,
    /// Longest sequence; the model's own limit if that is smaller or none is given.
    pub context_tokens: Option<u32>,
    /// Instruction set; the fastest of the CPU if none is given.
    pub isa: Option<Isa>,
}

impl Default for CpuOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { block_tokens: 16, kv_dtype: DType::F16, threads, context_tokens: None, isa: None }
    }
}

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is not a sound GGUF, or lacks something.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The model has something that this executor does not compute.
    #[error("`{field}` is {found}: {reason}")]
    Unsupported {
        /// Metadata key or tensor.
        field: String,
        /// What the file has.
        found: String,
        /// What would be right.
        reason: String,
    },
    /// A tensor has not the shape that the metadata asks for.
    #[error("tensor `{tensor}` is {found}, the model's metadata asks for {wanted}")]
    Shape {
        /// Its name.
        tensor: String,
        /// Its dimensions.
        found: String,
        /// What they must be.
        wanted: String,
    },
    /// The KV format that results is refused.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The instruction set asked for is not there.
    #[error("this CPU has no {wanted}; it has {available}")]
    NoIsa {
        /// What was asked for.
        wanted: Isa,
        /// What there is.
        available: String,
    },
    /// Threads cannot be started.
    #[error("cannot start threads: {0}")]
    Threads(String),
}

/// A loaded model that runs on the CPU.
pub struct CpuExecutor {
    spec: ModelSpec,
    config: Config,
    weights: Weights,
    rope: Rope,
    threads: Threads,
    kernels: &'static simd::Kernels,
    isa: Isa,
}

impl CpuExecutor {
    /// Loads and repacks a model. Reads the whole file once for its digest and once for its weights.
    ///
    /// # Errors
    /// [`LoadError`] names the field of the file, or the option, that is refused.
    pub fn load(path: &Path, options: CpuOptions) -> Result<Self, LoadError> {
        let file = Gguf::open(path)?;
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        Self::from_gguf(&file, &stem, options)
    }

    /// As [`CpuExecutor::load`], from a file that is open; `name` is the model's name if the file does not say.
    ///
    /// # Errors
    /// [`LoadError`] names the field of the file, or the option, that is refused.
    pub fn from_gguf(file: &Gguf, name: &str, options: CpuOptions) -> Result<Self, LoadError> {
        let isa = options.isa.unwrap_or_else(Isa::best);
        let kernels = isa.kernels().ok_or_else(|| LoadError::NoIsa {
            wanted: isa,
            available: Isa::available().map(|isa| isa.to_string()).collect::<Vec<_>>().join(", "),
        })?;
        let config = Config::read(file)?;
        let format = KvFormat {
            layers: config.layers as u32,
            kv_heads: config.kv_heads as u32,
            head_dim: config.head_dim as u32,
            block_tokens: options.block_tokens,
            dtype: options.kv_dtype,
        };
        format.validate()?;
        let threads = Threads::new(options.threads).map_err(|e| LoadError::Threads(e.to_string()))?;
        let weights = Weights::read(file, &config)?;
        let rope = Rope::new(
            config.rope_dims,
            config.rope_base,
            config.rope_scale,
            weights.rope_factors.as_deref(),
            config.rope_split,
        );
        let context_tokens = options.context_tokens.map_or(config.context, |tokens| tokens.min(config.context));
        let vocab = weights.embedding.outputs as u32;
        let eos = ["eos", "eot"].iter().filter_map(|kind| file.u32(&format!("tokenizer.ggml.{kind}_token_id")).ok());
        let mut eos: Vec<u32> = eos.filter(|&token| token < vocab).collect();
        eos.dedup();
        let spec = ModelSpec {
            name: file.str("general.name").unwrap_or(name).to_owned(),
            digest: file.digest(),
            numerics: numerics(isa),
            vocab,
            context_tokens,
            eos,
            format,
        };
        Ok(Self { spec, config, weights, rope, threads, kernels, isa })
    }

    /// The instruction set in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

/// One id for all instruction sets whose results have been seen to be the same bits; NEON is built alike but has not
/// been compared on a machine, so it keeps to itself.
fn numerics(isa: Isa) -> String {
    match isa {
        Isa::Neon => format!("{KERNELS}-{isa}"),
        Isa::Scalar | Isa::Avx2 | Isa::Avx512 => KERNELS.to_owned(),
    }
}

impl Executor for CpuExecutor {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn forward(
        &mut self,
        batch: &[Chunk<'_>],
        kv: &KvMemory,
        on_layer: &mut dyn FnMut(u32),
    ) -> Result<Vec<Option<Logits>>, ExecError> {
        check_batch(&self.spec, batch, kv)?;
        Ok(forward::forward(self, batch, kv, on_layer))
    }
}
