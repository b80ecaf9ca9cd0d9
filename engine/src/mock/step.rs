//! How long a step takes: nothing, constants, or a roofline of a named GPU. Pure; the simulator may use it as it is.

use std::time::Duration;

/// What one step does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepLoad {
    /// Tokens of prompt chunks.
    pub prefill_tokens: u64,
    /// Sequences that decode one token.
    pub decode_sequences: u64,
    /// Tokens whose KV is read, summed over all sequences of the batch.
    pub kv_tokens: u64,
    /// KV bytes a token.
    pub token_bytes: u64,
}

/// Time of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum StepModel {
    /// None: as fast as the machine goes.
    #[default]
    Instant,
    /// A fixed time for each prompt token, and one for a step that decodes, whatever its batch.
    Constant {
        /// For each prompt token of the step.
        prefill_per_token: Duration,
        /// Once a step with at least one decoding sequence.
        decode_step: Duration,
    },
    /// The greater of arithmetic and memory time.
    Roofline {
        /// The device.
        gpu: Gpu,
        /// Parameters of the model.
        parameters: u64,
        /// Bytes of its weights.
        weight_bytes: u64,
    },
}

/// What bounds a device: its data sheet and the share of it that serving reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// Name for people.
    pub name: &'static str,
    /// Dense 16-bit floating point operations per second.
    pub flops_per_s: f64,
    /// Memory bytes per second.
    pub bytes_per_s: f64,
}

impl Gpu {
    /// NVIDIA A100 SXM 80 GB (data sheet: 312 TFLOPS BF16 dense, 2,039 GB/s).
    pub const A100: Self = Self { name: "A100", flops_per_s: 312e12, bytes_per_s: 2.039e12 };
    /// NVIDIA H100 SXM (data sheet: 989 TFLOPS BF16 dense, 3.35 TB/s).
    pub const H100: Self = Self { name: "H100", flops_per_s: 989e12, bytes_per_s: 3.35e12 };
    /// NVIDIA H200 SXM (data sheet: 989 TFLOPS BF16 dense, 4.8 TB/s).
    pub const H200: Self = Self { name: "H200", flops_per_s: 989e12, bytes_per_s: 4.8e12 };
}

/// Share of peak arithmetic that large prefill batches are assumed to reach.
const COMPUTE_EFFICIENCY: f64 = 0.5;
/// Share of peak memory bandwidth that decode steps are assumed to reach.
const MEMORY_EFFICIENCY: f64 = 0.8;

impl StepModel {
    /// Time of a step that does `load`.
    #[must_use]
    pub fn time(&self, load: &StepLoad) -> Duration {
        match *self {
            Self::Instant => Duration::ZERO,
            Self::Constant { prefill_per_token, decode_step } => {
                let prefill = prefill_per_token.as_secs_f64() * load.prefill_tokens as f64;
                let decode = if load.decode_sequences > 0 { decode_step } else { Duration::ZERO };
                Duration::from_secs_f64(prefill) + decode
            }
            Self::Roofline { gpu, parameters, weight_bytes } => {
                let tokens = load.prefill_tokens + load.decode_sequences;
                let flops = 2.0 * parameters as f64 * tokens as f64;
                let bytes = weight_bytes as f64 + load.kv_tokens as f64 * load.token_bytes as f64;
                let compute = flops / (gpu.flops_per_s * COMPUTE_EFFICIENCY);
                let memory = bytes / (gpu.bytes_per_s * MEMORY_EFFICIENCY);
                Duration::from_secs_f64(compute.max(memory))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_add_up() {
        let model =
            StepModel::Constant { prefill_per_token: Duration::from_micros(10), decode_step: Duration::from_millis(2) };
        let prefill = StepLoad { prefill_tokens: 100, ..Default::default() };
        let mixed = StepLoad { decode_sequences: 8, ..prefill };
        assert_eq!(model.time(&prefill), Duration::from_millis(1));
        assert_eq!(model.time(&mixed), Duration::from_millis(3));
        assert_eq!(StepModel::Instant.time(&mixed), Duration::ZERO);
    }

    #[test]
    fn a_roofline_is_memory_bound_in_decode_and_compute_bound_in_prefill() {
        let model = StepModel::Roofline { gpu: Gpu::H100, parameters: 8_000_000_000, weight_bytes: 16_000_000_000 };
        let decode = StepLoad { decode_sequences: 1, kv_tokens: 1000, token_bytes: 131_072, ..Default::default() };
        let two = StepLoad { decode_sequences: 2, ..decode };
        assert_eq!(model.time(&decode), model.time(&two), "weights dominate");
        let one = StepLoad { prefill_tokens: 4096, ..Default::default() };
        let double = StepLoad { prefill_tokens: 8192, ..Default::default() };
        let ratio = model.time(&double).as_secs_f64() / model.time(&one).as_secs_f64();
        assert!((ratio - 2.0).abs() < 1e-6, "{ratio}");
    }
}
