//! All weights of a model, from a GGUF's tensors. Each tensor's shape is checked; one that is not understood is refused,
//! since a model computed without it would be another model.

use std::collections::HashSet;

use kvrail_gguf::{Gguf, TensorType};

use super::LoadError;
use super::config::Config;
use super::layout::Vec16;
use super::matrix::{self, Matrix};

/// One transformer layer.
pub(super) struct Layer {
    pub attention_norm: Vec<Vec16>,
    /// Queries, keys and values: outputs one after the other, in as few matrices as their types allow.
    pub qkv: Vec<Matrix>,
    /// Added to the outputs of `qkv`, where the model has biases.
    pub qkv_bias: Option<Vec<Vec16>>,
    /// Norm of each query head and each key head, where the model has them.
    pub head_norms: Option<[Vec<Vec16>; 2]>,
    pub output: Matrix,
    pub ffn_norm: Vec<Vec16>,
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
}

/// A model's weights.
pub(super) struct Weights {
    pub embedding: Matrix,
    pub layers: Vec<Layer>,
    pub final_norm: Vec<Vec16>,
    /// None where the embedding is also the output matrix.
    pub output: Option<Matrix>,
    pub rope_factors: Option<Vec<f32>>,
}

impl Weights {
    pub(super) fn read(file: &Gguf, config: &Config) -> Result<Self, LoadError> {
        let mut reader = Reader { file, used: HashSet::new() };
        let info = file.tensor("token_embd.weight")?.0;
        let vocab = match info.dims[..] {
            [_, vocab] if vocab <= 1 << 24 => vocab as usize,
            _ => return Err(shape(info.name.clone(), &info.dims, "[embedding_length, vocabulary up to 2^24]")),
        };
        let embedding = reader.matrix("token_embd.weight", config.hidden, vocab)?;
        let output = reader.has("output.weight").then(|| reader.matrix("output.weight", config.hidden, vocab));
        let rope_factors = reader.has("rope_freqs.weight").then(|| {
            let factors = reader.vector("rope_freqs.weight", config.rope_dims / 2)?;
            Ok::<_, LoadError>(factors.iter().flat_map(|v| v.0).take(config.rope_dims / 2).collect::<Vec<f32>>())
        });
        let layers = (0..config.layers).map(|layer| reader.layer(config, layer)).collect::<Result<_, _>>()?;
        let weights = Self {
            embedding,
            layers,
            final_norm: reader.vector("output_norm.weight", config.hidden)?,
            output: output.transpose()?,
            rope_factors: rope_factors.transpose()?,
        };
        match file.tensors().iter().find(|tensor| !reader.used.contains(&tensor.name)) {
            None => Ok(weights),
            Some(tensor) => Err(LoadError::Unsupported {
                field: "tensor table".into(),
                found: tensor.name.chars().take(80).collect(),
                reason: "this model has a part that the executor does not compute".into(),
            }),
        }
    }
}

struct Reader<'a> {
    file: &'a Gguf,
    used: HashSet<String>,
}

impl<'a> Reader<'a> {
    fn has(&self, name: &str) -> bool {
        self.file.find_tensor(name).is_some()
    }

    fn layer(&mut self, config: &Config, index: usize) -> Result<Layer, LoadError> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let (hidden, ffn) = (config.hidden, config.ffn);
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let parts = [(name("attn_q"), q), (name("attn_k"), kv), (name("attn_v"), kv)];
        let qkv_bias = self.has(&format!("{}.bias", parts[0].0)).then(|| {
            let biases = parts.iter().map(|(part, len)| self.vector(&format!("{part}.bias"), *len));
            biases.collect::<Result<Vec<_>, _>>().map(|biases| biases.concat())
        });
        let head_norms = self.has(&name("attn_q_norm.weight")).then(|| {
            let q = self.vector(&name("attn_q_norm.weight"), config.head_dim)?;
            Ok::<_, LoadError>([q, self.vector(&name("attn_k_norm.weight"), config.head_dim)?])
        });
        Ok(Layer {
            attention_norm: self.vector(&name("attn_norm.weight"), hidden)?,
            qkv: self.stack(&parts, hidden)?,
            qkv_bias: qkv_bias.transpose()?,
            head_norms: head_norms.transpose()?,
            output: self.matrix(&name("attn_output.weight"), q, hidden)?,
            ffn_norm: self.vector(&name("ffn_norm.weight"), hidden)?,
            gate: self.matrix(&name("ffn_gate.weight"), hidden, ffn)?,
            up: self.matrix(&name("ffn_up.weight"), hidden, ffn)?,
            down: self.matrix(&name("ffn_down.weight"), ffn, hidden)?,
        })
    }

    /// Matrices with the same inputs, neighbours of one type merged.
    fn stack(&mut self, parts: &[(String, usize)], inputs: usize) -> Result<Vec<Matrix>, LoadError> {
        let mut runs: Vec<(TensorType, Vec<matrix::Part<'_>>)> = Vec::new();
        for (part, outputs) in parts {
            let (dtype, bytes) = self.checked(&format!("{part}.weight"), &[inputs, *outputs])?;
            match runs.last_mut() {
                Some((last, run)) if *last == dtype => run.push((*outputs, bytes)),
                _ => runs.push((dtype, vec![(*outputs, bytes)])),
            }
        }
        Ok(runs.iter().map(|(dtype, run)| Matrix::pack(*dtype, inputs, run)).collect())
    }

    fn matrix(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Matrix, LoadError> {
        let (dtype, bytes) = self.checked(name, &[inputs, outputs])?;
        Ok(Matrix::pack(dtype, inputs, &[(outputs, bytes)]))
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<Vec16>, LoadError> {
        match self.checked(name, &[len])? {
            (TensorType::F32, bytes) => Ok(matrix::vector(bytes)),
            (other, _) => Err(LoadError::Unsupported {
                field: name.to_owned(),
                found: format!("{other:?}"),
                reason: "norms and biases must be F32".into(),
            }),
        }
    }

    /// A tensor of the type and shape that the model's metadata asks for.
    fn checked(&mut self, name: &str, wanted: &[usize]) -> Result<(TensorType, &'a [u8]), LoadError> {
        let (info, bytes) = self.file.tensor(name)?;
        if !info.dims.iter().copied().eq(wanted.iter().map(|&n| n as u64)) {
            return Err(shape(name.to_owned(), &info.dims, &format!("{wanted:?}")));
        }
        if !matrix::is_supported(info.dtype) {
            return Err(LoadError::Unsupported {
                field: name.to_owned(),
                found: format!("{:?}", info.dtype),
                reason: "Q4_0, Q4_1, Q8_0, Q4_K, Q6_K, F16 and F32 are supported".into(),
            });
        }
        self.used.insert(name.to_owned());
        Ok((info.dtype, bytes))
    }
}

fn shape(tensor: String, found: &[u64], wanted: &str) -> LoadError {
    LoadError::Shape { tensor, found: format!("{found:?}"), wanted: wanted.to_owned() }
}
