//! Rotary position embedding.

/// Angles and pairing of one model.
pub(super) struct Rope {
    /// Radians a position, one for each pair.
    frequencies: Vec<f64>,
    /// Pairs are (i, i + n/2), not (2i, 2i + 1).
    split: bool,
}

impl Rope {
    /// `dims` of each head are rotated; pair i turns by base^(−2i/dims) ÷ (`factors[i]` × `scale`) a position.
    pub(super) fn new(dims: usize, base: f32, scale: f32, factors: Option<&[f32]>, split: bool) -> Self {
        let frequency = |i: usize| {
            let factor = factors.map_or(1.0, |factors| f64::from(factors[i]));
            f64::from(base).powf(-2.0 * i as f64 / dims as f64) / (factor * f64::from(scale))
        };
        Self { frequencies: (0..dims / 2).map(frequency).collect(), split }
    }

    /// Pairs of a head that are rotated.
    pub(super) fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Cosine and sine for each pair at a position. In double precision: the angle of a late position has few bits left
    /// in single.
    pub(super) fn turns(&self, position: u32) -> impl Iterator<Item = [f32; 2]> {
        self.frequencies.iter().map(move |frequency| {
            let (sin, cos) = (f64::from(position) * frequency).sin_cos();
            [cos as f32, sin as f32]
        })
    }

    /// Rotates one head.
    pub(super) fn apply(&self, turns: &[[f32; 2]], head: &mut [f32]) {
        let half = self.pairs();
        for (i, &[cos, sin]) in turns.iter().enumerate() {
            let (a, b) = if self.split { (i, i + half) } else { (2 * i, 2 * i + 1) };
            let (x, y) = (head[a], head[b]);
            head[a] = x * cos - y * sin;
            head[b] = x * sin + y * cos;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_keeps_length_and_depends_on_distance_only() {
        for split in [false, true] {
            let rope = Rope::new(8, 1e4, 1.0, None, split);
            let at = |position| {
                let mut head = [1.0, -2.0, 3.0, 0.5, 0.25, 4.0, -1.0, 2.0, 9.0, 9.0];
                rope.apply(&rope.turns(position).collect::<Vec<_>>(), &mut head);
                assert_eq!(head[8..], [9.0, 9.0], "dimensions past the rotated ones stay");
                head
            };
            let dot = |a: [f32; 10], b: [f32; 10]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            assert_eq!(at(0)[..3], [1.0, -2.0, 3.0]);
            assert!((dot(at(7), at(7)) - dot(at(0), at(0))).abs() < 1e-3);
            assert!((dot(at(103), at(100)) - dot(at(3), at(0))).abs() < 1e-3);
        }
    }

    #[test]
    fn factors_and_scale_slow_a_pair_down() {
        let plain = Rope::new(4, 100.0, 1.0, None, false);
        let slow = Rope::new(4, 100.0, 2.0, Some(&[1.0, 4.0]), false);
        assert_eq!(plain.frequencies, [1.0, 0.1]);
        assert_eq!(slow.frequencies, [0.5, 0.1 / 8.0]);
    }
}
