//! From a model source to an executor.

use kvrail_engine::Executor;
use kvrail_engine::cpu::{CpuExecutor, CpuOptions};
use kvrail_engine::mock::MockExecutor;

use crate::config::{GgufOptions, ModelSource};
use crate::node::NodeError;

/// Loads the model. Blocks: a file is mapped and checked.
///
/// # Errors
/// [`NodeError::Model`] with what is wrong with the source.
pub(crate) fn load(source: ModelSource) -> Result<Box<dyn Executor>, NodeError> {
    match source {
        ModelSource::Gguf(GgufOptions { path, block_tokens, kv_dtype, threads, context_tokens }) => {
            let mut options = CpuOptions { block_tokens, kv_dtype, context_tokens, ..CpuOptions::default() };
            if threads > 0 {
                options.threads = threads;
            }
            let executor = CpuExecutor::load(&path, options).map_err(|error| NodeError::Model(Box::new(error)))?;
            Ok(Box::new(executor))
        }
        ModelSource::Mock(options) => {
            let executor = MockExecutor::new(options).map_err(|error| NodeError::Model(Box::new(error)))?;
            Ok(Box::new(executor))
        }
    }
}
