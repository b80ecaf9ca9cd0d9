//! Whether to look again before sleeping: a wake-up costs more than a small write takes.
//!
//! Pure. Looking pays where the next word comes soon, and costs a core where it does not; so a miss makes the next attempts rarer, and
//! a hit makes them usual again.

/// Sleeps without a look after many misses, at most: one look in so many is what it costs to notice that words come fast again.
const SKIPS_MAX: u32 = 64;

/// Keeps count of how looking went.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// Sleeps to go without a look.
    skips: u32,
    /// Length of the last run of them.
    run: u32,
}

impl Spin {
    /// Whether to look before this sleep.
    pub(crate) fn pays(&mut self) -> bool {
        let pays = self.skips == 0;
        self.skips = self.skips.saturating_sub(1);
        pays
    }

    /// Something came while it looked.
    pub(crate) fn hit(&mut self) {
        *self = Self::default();
    }

    /// Nothing came.
    pub(crate) fn missed(&mut self) {
        self.run = (self.run * 2).clamp(1, SKIPS_MAX);
        self.skips = self.run;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(spin: &mut Spin, sleeps: usize) -> usize {
        (0..sleeps).filter(|_| spin.pays()).inspect(|_| ()).count()
    }

    #[test]
    fn hits_keep_it_looking() {
        let mut spin = Spin::default();
        for _ in 0..10 {
            assert!(spin.pays());
            spin.hit();
        }
    }

    #[test]
    fn misses_make_it_rare_and_one_hit_usual_again() {
        let mut spin = Spin::default();
        let mut looked = 0;
        for _ in 0..10_000 {
            if spin.pays() {
                looked += 1;
                spin.missed();
            }
        }
        assert!((100..200).contains(&looked), "{looked}");
        while !spin.pays() {}
        spin.hit();
        assert_eq!(looks(&mut spin, 10), 10);
    }
}
