//! How far a fetch is: a bar on a terminal, a line every tenth otherwise.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Progress of one step.
#[derive(Debug)]
pub struct Progress {
    what: String,
    total: Option<u64>,
    done: u64,
    /// Tenths that have been told.
    told: u64,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Begins a step of `total` bytes, if that is known.
    pub fn start(what: &str, total: Option<u64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
            let template = match total {
                Some(_) => "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
                None => "{msg} {spinner} {bytes} {bytes_per_sec}",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.with_message(what.to_owned())
        });
        if bar.is_none() {
            match total {
                Some(total) => say!("{what}: {} to go", size(total)),
                None => say!("{what}"),
            }
        }
        Self { what: what.to_owned(), total, done: 0, told: 0, bar }
    }

    /// So many bytes are done, all in all.
    pub fn set(&mut self, done: u64) {
        self.done = done;
        match (&self.bar, self.total) {
            (Some(bar), _) => bar.set_position(done),
            (None, Some(total)) if total > 0 => {
                let tenth = done.saturating_mul(10) / total;
                if tenth > self.told && tenth <= 10 {
                    self.told = tenth;
                    say!("{}: {}0 % ({})", self.what, tenth, size(done));
                }
            }
            _ => {}
        }
    }

    /// So many bytes more.
    pub fn add(&mut self, bytes: u64) {
        self.set(self.done + bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A number of bytes for people.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (bytes.ilog2() / 10) as usize;
    format!("{:.1} {}", bytes as f64 / f64::powi(1024.0, power as i32), UNITS[power - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(98_362_432), "93.8 MiB");
        assert_eq!(size(u64::MAX), "16.0 EiB");
    }
}
