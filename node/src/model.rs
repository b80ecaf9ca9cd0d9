//! From a model source to an executor.

use kvrail_engine::Executor;
use kvrail_engine::mock::MockExecutor;

use crate::config::ModelSource;
use crate::node::NodeError;

/// Loads the model. Blocks: a file is mapped and checked.
///
/// # Errors
/// [`NodeError::Model`] with what is wrong with the source.
pub(crate) fn load(source: ModelSource) -> Result<Box<dyn Executor>, NodeError> {
    match source {
        ModelSource::Gguf(gguf) => {
            Err(NodeError::Config(format!("{}: the CPU executor is not part of this build yet", gguf.path.display())))
        }
        ModelSource::Mock(options) => {
            let executor = MockExecutor::new(options).map_err(|error| NodeError::Model(Box::new(error)))?;
            Ok(Box::new(executor))
        }
    }
}
