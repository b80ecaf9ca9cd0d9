//! Who runs a sweep sees how far it is: a line that changes on a terminal, a line a cell elsewhere. On stderr, always.

use std::io::IsTerminal;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::cell::Cell;
use super::member::Meter;
use super::report::Figures;

/// Shows how far a sweep is.
pub struct Watch {
    bar: Option<ProgressBar>,
    cells: usize,
    meter: Meter,
    since: Instant,
    now: String,
}

impl Watch {
    /// Of a sweep with so many cells; `meter` is what this process moves.
    #[must_use]
    pub fn new(cells: usize, meter: Meter) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(cells as u64), ProgressDrawTarget::stderr());
            // The template is ours and right; the default one would do.
            bar.set_style(
                ProgressStyle::with_template("{bar:20} {pos}/{len} {wide_msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar
        });
        Self { bar, cells, meter, since: Instant::now(), now: String::new() }
    }

    /// A step of the work has begun.
    pub fn begin(&mut self, what: String) {
        self.now = what;
        self.since = Instant::now();
        if let Some(bar) = &self.bar {
            bar.set_message(self.now.clone());
        }
    }

    /// It still goes on.
    pub fn tick(&self) {
        let Some(bar) = &self.bar else { return };
        let (bytes, time) = (self.meter.load(Ordering::Relaxed), self.since.elapsed().max(Duration::from_millis(1)));
        let rate = bytes as f64 / time.as_secs_f64() / 1e9;
        bar.set_message(format!("{}: {rate:.2} GB/s here, {:.0} s", self.now, time.as_secs_f64()));
    }

    /// A cell has its figures.
    pub fn end(&self, number: usize, cell: &Cell, figures: &Figures) {
        match &self.bar {
            Some(bar) => bar.inc(1),
            None => eprintln!("{}/{} {cell}: {:.3} GB/s", number + 1, self.cells, figures.gb_per_s),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
