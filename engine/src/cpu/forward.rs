//! One pass over all layers for a ragged batch.
//!
//! A row is one token of one chunk. Rows meet only in attention, through the cache: the keys and values of a layer are
//! written for the whole batch before any row of it attends.

use super::CpuExecutor;
use super::layout::{Acts, GROUP, QGroup, Tiles, Vec16, View};
use super::matrix::Matrix;
use super::pages::Pages;
use super::simd::{Attend, Multiply, Normalise, Quantise};
use super::weights::Layer;
use crate::executor::{Chunk, Logits};
use crate::memory::KvMemory;

use kvrail_kv::DType;

/// Rows that attend together at most: they share the conversion of a tile of keys and values.
const ATTENTION_ROWS: usize = 16;

/// A token of the batch.
#[derive(Clone, Copy)]
struct Row {
    chunk: usize,
    position: usize,
}

/// What is allocated once for a pass.
struct Pass<'a> {
    model: &'a CpuExecutor,
    batch: &'a [Chunk<'a>],
    kv: &'a KvMemory,
    rows: Vec<Row>,
    /// Cosines and sines, `[row][pair]`.
    turns: Vec<[f32; 2]>,
    /// Rows that attend together.
    attention_rows: usize,
    /// The residual stream.
    x: Tiles,
    qkv: Tiles,
    /// `[kv head][row, padded to whole jobs][query head of the group][chunk]`.
    attended: Vec<Vec16>,
    hidden: Tiles,
    acts: Acts,
}

pub(super) fn forward(
    model: &CpuExecutor,
    batch: &[Chunk<'_>],
    kv: &KvMemory,
    on_layer: &mut dyn FnMut(u32),
) -> Vec<Option<Logits>> {
    if batch.is_empty() {
        return Vec::new();
    }
    let mut pass = Pass::new(model, batch, kv);
    // The callback stays on the caller's thread, so a stretch inside the pool ends where it fires: after keys and values.
    for index in 0..model.weights.layers.len() {
        model.threads.enter(|| {
            match index.checked_sub(1) {
                None => pass.embed(),
                Some(previous) => pass.rest_of_layer(previous),
            }
            pass.keys_and_values(index);
        });
        on_layer(index as u32);
    }
    if !pass.keep_wanted() {
        return vec![None; batch.len()];
    }
    model.threads.enter(|| {
        pass.rest_of_layer(model.weights.layers.len() - 1);
        pass.logits()
    })
}

impl<'a> Pass<'a> {
    fn new(model: &'a CpuExecutor, batch: &'a [Chunk<'a>], kv: &'a KvMemory) -> Self {
        let config = &model.config;
        let rows: Vec<Row> = batch
            .iter()
            .enumerate()
            .flat_map(|(chunk, c)| (0..c.tokens.len()).map(move |i| Row { chunk, position: c.position as usize + i }))
            .collect();
        let count = rows.len();
        let mut pass = Self {
            turns: rows.iter().flat_map(|row| model.rope.turns(row.position as u32)).collect(),
            attention_rows: 0,
            x: Tiles::new(count, config.hidden),
            qkv: Tiles::new(count, (config.heads + 2 * config.kv_heads) * config.head_dim),
            attended: Vec::new(),
            hidden: Tiles::new(count, config.ffn),
            acts: Acts::default(),
            model,
            batch,
            kv,
            rows,
        };
        pass.share_attention();
        pass
    }

    /// How attention is shared between threads, and where its results go.
    fn share_attention(&mut self) {
        let (config, count) = (&self.model.config, self.rows.len());
        self.attention_rows = self.model.threads.share(count).min(ATTENTION_ROWS);
        let padded = count.next_multiple_of(self.attention_rows);
        self.attended.resize(padded * config.heads * config.head_dim / 16, Vec16::ZERO);
    }

    /// Goes on with those rows alone whose logits are wanted: once the last layer's keys and values are written, nothing
    /// depends on the others. False if no row is left.
    fn keep_wanted(&mut self) -> bool {
        let ends = self.batch.iter().scan(0, |end, chunk| {
            *end += chunk.tokens.len();
            Some((*end - 1, chunk.want_logits))
        });
        let kept: Vec<usize> = ends.filter(|end| end.1).map(|end| end.0).collect();
        if kept.is_empty() || kept.len() == self.rows.len() {
            return !kept.is_empty();
        }
        let pairs = self.model.rope.pairs();
        self.turns = kept.iter().flat_map(|&row| &self.turns[row * pairs..][..pairs]).copied().collect();
        self.rows = kept.iter().map(|&row| self.rows[row]).collect();
        self.x = self.x.pick(&kept);
        self.qkv = self.qkv.pick(&kept);
        self.hidden = Tiles::new(kept.len(), self.model.config.ffn);
        self.share_attention();
        true
    }

    fn embed(&mut self) {
        let rows = self.rows.len();
        let tokens = self.batch.iter().flat_map(|chunk| chunk.tokens);
        for (row, &token) in tokens.enumerate() {
            let x = &mut self.x.data;
            self.model.weights.embedding.row(token as usize, |k, v| x[k / 16 * rows + row].0[k % 16] = v);
        }
    }

    /// Norm, projections, and this layer's keys and values into the cache.
    fn keys_and_values(&mut self, index: usize) {
        let (model, layer) = (self.model, &self.model.weights.layers[index]);
        let norm = Some(layer.attention_norm.as_slice());
        prepare(model, &mut self.acts, self.x.view(), self.rows.len(), norm, &layer.qkv.iter().collect::<Vec<_>>());
        project_qkv(model, layer, &self.acts, &mut self.qkv);
        let this = &*self;
        let share = model.threads.share(this.rows.len());
        model.threads.each(this.rows.len().div_ceil(share), |job| {
            for row in job * share..((job + 1) * share).min(this.rows.len()) {
                this.store(index, layer, row);
            }
        });
    }

    /// Writes one row's keys and values.
    fn store(&self, index: usize, layer: &Layer, row: usize) {
        let config = &self.model.config;
        let chunks = config.head_dim / 16;
        let Row { chunk, position } = self.rows[row];
        let mut head = vec![Vec16::ZERO; chunks];
        let mut halves = vec![0u16; config.head_dim];
        for kv_head in 0..config.kv_heads {
            let pages =
                Pages { kv: self.kv, table: self.batch[chunk].table, layer: index as u32, head: kv_head as u32 };
            for is_value in [false, true] {
                let projected = config.heads + usize::from(is_value) * config.kv_heads + kv_head;
                if is_value {
                    self.gather(row, projected, &mut head);
                } else {
                    self.rotated(row, projected, layer.head_norms.as_ref().map(|norms| &norms[1][..]), &mut head);
                }
                match pages.dtype() {
                    DType::F32 => pages.write(is_value, position, bytemuck::cast_slice(&head)),
                    DType::F16 => {
                        (self.model.kernels.to_half)(&head, &mut halves);
                        pages.write(is_value, position, bytemuck::cast_slice(&halves));
                    }
                }
            }
        }
    }

    fn gather(&self, row: usize, head: usize, out: &mut [Vec16]) {
        for (chunk, out) in out.iter_mut().enumerate() {
            *out = *self.qkv.at(row, head * (self.model.config.head_dim / 16) + chunk);
        }
    }

    /// A query or key head, normed where the model says so, and rotated.
    fn rotated(&self, row: usize, head: usize, norm: Option<&[Vec16]>, out: &mut [Vec16]) {
        self.gather(row, head, out);
        if let Some(weight) = norm {
            let from = out.to_vec();
            let epsilon = self.model.config.epsilon;
            (self.model.kernels.normalise)(Normalise { input: View::row(&from), row: 0, weight, epsilon, out });
        }
        let pairs = self.model.rope.pairs();
        self.model.rope.apply(&self.turns[row * pairs..][..pairs], bytemuck::cast_slice_mut(out));
    }

    /// Attention, its output, and the feed-forward network.
    fn rest_of_layer(&mut self, index: usize) {
        let (model, layer) = (self.model, &self.model.weights.layers[index]);
        let rows = self.rows.len();
        self.attend(index, layer);
        let group_chunks = model.config.heads / model.config.kv_heads * model.config.head_dim / 16;
        let attended = View {
            data: &self.attended,
            segment_chunks: group_chunks,
            segment_stride: rows.next_multiple_of(self.attention_rows) * group_chunks,
            row_stride: group_chunks,
        };
        prepare(model, &mut self.acts, attended, rows, None, &[&layer.output]);
        multiply(model, &layer.output, &self.acts, &mut self.x, true);
        prepare(model, &mut self.acts, self.x.view(), rows, Some(&layer.ffn_norm), &[&layer.gate, &layer.up]);
        gate_and_up(model, layer, &self.acts, &mut self.hidden);
        prepare(model, &mut self.acts, self.hidden.view(), rows, None, &[&layer.down]);
        multiply(model, &layer.down, &self.acts, &mut self.x, true);
    }

    fn attend(&mut self, index: usize, layer: &Layer) {
        let mut attended = std::mem::take(&mut self.attended);
        let this = &*self;
        let config = &this.model.config;
        let group = config.heads / config.kv_heads;
        let row_chunks = group * config.head_dim / 16;
        let jobs_a_head = this.rows.len().div_ceil(this.attention_rows);
        this.model.threads.pieces(&mut attended, this.attention_rows * row_chunks, |job, out| {
            let (kv_head, first) = (job / jobs_a_head, job % jobs_a_head * this.attention_rows);
            let last = (first + this.attention_rows).min(this.rows.len());
            let mut row = first;
            while row < last {
                // Rows of one sequence at a time.
                let chunk = this.rows[row].chunk;
                let run = this.rows[row..last].iter().take_while(|other| other.chunk == chunk).count();
                let out = &mut out[(row - first) * row_chunks..][..run * row_chunks];
                let table = this.batch[chunk].table;
                let pages = Pages { kv: this.kv, table, layer: index as u32, head: kv_head as u32 };
                this.attend_run(layer, pages, row, out);
                row += run;
            }
        });
        self.attended = attended;
    }

    fn attend_run(&self, layer: &Layer, pages: Pages<'_>, row: usize, out: &mut [Vec16]) {
        let config = &self.model.config;
        let (group, chunks) = (config.heads / config.kv_heads, config.head_dim / 16);
        let norm = layer.head_norms.as_ref().map(|norms| &norms[0][..]);
        let mut queries = vec![Vec16::ZERO; out.len()];
        for (i, query) in queries.chunks_exact_mut(chunks).enumerate() {
            self.rotated(row + i / group, pages.head as usize * group + i % group, norm, query);
        }
        let scale = 1.0 / (config.head_dim as f32).sqrt();
        let first = self.rows[row].position;
        (self.model.kernels.attend)(Attend { pages, first, group, queries: &queries, scale, out });
    }

    /// Logits of the rows that were kept, each at its chunk.
    fn logits(&mut self) -> Vec<Option<Logits>> {
        let (model, rows) = (self.model, self.rows.len());
        let matrix = model.weights.output.as_ref().unwrap_or(&model.weights.embedding);
        let mut out = Tiles::new(rows, matrix.outputs);
        prepare(model, &mut self.acts, self.x.view(), rows, Some(&model.weights.final_norm), &[matrix]);
        multiply(model, matrix, &self.acts, &mut out, false);
        let mut all = vec![None; self.batch.len()];
        for (i, row) in self.rows.iter().enumerate() {
            let mut logits: Logits = (0..matrix.tiles()).flat_map(|chunk| out.at(i, chunk).0).collect();
            logits.truncate(matrix.outputs);
            all[row.chunk] = Some(logits);
        }
        all
    }
}

/// Brings rows, normed or not, into the form that `matrices` are multiplied with.
fn prepare(
    model: &CpuExecutor,
    acts: &mut Acts,
    input: View<'_>,
    rows: usize,
    norm: Option<&[Vec16]>,
    matrices: &[&Matrix],
) {
    let inputs = matrices[0].inputs;
    acts.rows = rows;
    acts.groups = inputs / GROUP;
    let chunks = inputs / 16;
    let share = model.threads.share(rows);
    let normalise = |row, weight, out: &mut [Vec16]| {
        let epsilon = model.config.epsilon;
        (model.kernels.normalise)(Normalise { input, row, weight, epsilon, out });
    };
    if matrices.iter().any(|matrix| matrix.is_plain()) {
        acts.plain.resize(rows * chunks, Vec16::ZERO);
        model.threads.pieces(&mut acts.plain, share * chunks, |job, out| {
            for (i, out) in out.chunks_exact_mut(chunks).enumerate() {
                let row = job * share + i;
                match norm {
                    Some(weight) => normalise(row, weight, out),
                    None => out.iter_mut().enumerate().for_each(|(chunk, out)| *out = *input.at(row, chunk)),
                }
            }
        });
    }
    if matrices.iter().any(|matrix| !matrix.is_plain()) {
        let groups = acts.groups;
        acts.quantised.resize(rows * groups, QGroup::ZERO);
        model.threads.pieces(&mut acts.quantised, share * groups, |job, out| {
            let mut normed = vec![Vec16::ZERO; if norm.is_some() { chunks } else { 0 }];
            for (i, out) in out.chunks_exact_mut(groups).enumerate() {
                let row = job * share + i;
                match norm {
                    Some(weight) => {
                        normalise(row, weight, &mut normed);
                        (model.kernels.quantise)(Quantise { input: View::row(&normed), row: 0, out });
                    }
                    None => (model.kernels.quantise)(Quantise { input, row, out }),
                }
            }
        });
    }
}

/// `out` ← matrix × acts, or added to it.
fn multiply(model: &CpuExecutor, matrix: &Matrix, acts: &Acts, out: &mut Tiles, add: bool) {
    let share = model.threads.share(matrix.tiles());
    model.threads.pieces(&mut out.data, share * acts.rows, |job, out| {
        for (i, out) in out.chunks_exact_mut(acts.rows).enumerate() {
            (model.kernels.multiply)(Multiply { matrix, tile: job * share + i, acts, out, add });
        }
    });
}

fn project_qkv(model: &CpuExecutor, layer: &Layer, acts: &Acts, out: &mut Tiles) {
    let share = model.threads.share(out.data.len() / acts.rows);
    model.threads.pieces(&mut out.data, share * acts.rows, |job, out| {
        for (i, out) in out.chunks_exact_mut(acts.rows).enumerate() {
            let tile = job * share + i;
            let mut first = 0;
            for matrix in &layer.qkv {
                if (first..first + matrix.tiles()).contains(&tile) {
                    let tile = tile - first;
                    (model.kernels.multiply)(Multiply { matrix, tile, acts, out: &mut *out, add: false });
                }
                first += matrix.tiles();
            }
            if let Some(bias) = &layer.qkv_bias {
                for row in out {
                    for (x, bias) in row.0.iter_mut().zip(bias[tile].0) {
                        *x += bias;
                    }
                }
            }
        }
    });
}

/// silu(gate) × up, tile by tile.
fn gate_and_up(model: &CpuExecutor, layer: &Layer, acts: &Acts, out: &mut Tiles) {
    let share = model.threads.share(layer.gate.tiles());
    model.threads.pieces(&mut out.data, share * acts.rows, |job, out| {
        let mut up = vec![Vec16::ZERO; acts.rows];
        for (i, gate) in out.chunks_exact_mut(acts.rows).enumerate() {
            let tile = job * share + i;
            let add = false;
            (model.kernels.multiply)(Multiply { matrix: &layer.gate, tile, acts, out: &mut *gate, add });
            (model.kernels.multiply)(Multiply { matrix: &layer.up, tile, acts, out: &mut up, add });
            (model.kernels.swiglu)(gate, &up);
        }
    });
}
