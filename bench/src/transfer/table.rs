//! A sweep's report for people.

use comfy_table::{Cell as Field, CellAlignment};

use super::cell::OpKind;
use super::report::{Figures, Report};
use super::tally::Percentiles;
use super::units::show_size;
use crate::show::table;

impl Report {
    /// A table, and what was done to cells with faults; `timeline` shows throughput over time of all cells.
    #[must_use]
    pub fn text(&self, timeline: bool) -> String {
        let machine = &self.machine;
        let mut out = format!(
            "{}: {} between this process and {}; {} cores, Linux {}, TCP {}, huge pages {} (shared: {})\n",
            self.pattern,
            count(self.flows.len(), "flow"),
            count(self.peers, "peer"),
            machine.cores,
            machine.kernel,
            machine.congestion_control,
            machine.huge_pages,
            machine.huge_pages_shared,
        );
        if let Some(preset) = &self.preset {
            out += &format!("{preset}\n");
        }
        if let (Some(line), Some(all)) = (self.line_rate, self.pattern_line_rate) {
            out += &format!("line: {line} a machine, {all} in this pattern\n");
        }
        out += &format!("{}\n", self.table());
        out += "post: submit · wire: first slice out to last one visible · visible: before submit to the caller's knowing; p50/p99/p999\n";
        let verified: u64 = self.cells.iter().map(|figures| figures.blocks_verified).sum();
        out += &if self.verified {
            format!(
                "{verified} blocks looked at, byte for byte, when their receiver was told, none wrong; that takes its time, which is in these figures\n"
            )
        } else {
            format!("{verified} blocks looked at, byte for byte, after their cells, none wrong\n")
        };
        for figures in &self.cells {
            out += &rails(figures);
            out += &flows(self, figures);
            out += &trouble(figures);
            if timeline || !figures.timeline.events.is_empty() {
                out += &over_time(figures);
            }
        }
        out
    }

    fn table(&self) -> comfy_table::Table {
        let lined = self.pattern_line_rate.is_some();
        let mut head = vec!["", "block", "batch", "under way", "streams", "GB/s"];
        head.extend(lined.then_some("of line"));
        head.extend(["op/s", "post µs", "wire µs", "visible µs", "CPU s/GB", "waiting", "balance"]);
        head.extend((self.flows.len() > 1).then_some("fairness"));
        head.push("retried");
        let mut table = table(&head);
        for figures in &self.cells {
            let cell = &figures.cell;
            let op = if cell.op == OpKind::Write { "write" } else { "read" };
            let mut row = vec![
                format!("{} {op}", cell.wire),
                show_size(cell.block_bytes),
                cell.batch.to_string(),
                format!("{} × {}", cell.threads, cell.in_flight),
                cell.streams.to_string(),
                format!("{:.3}", figures.gb_per_s),
            ];
            row.extend(
                lined.then(|| figures.of_line.map_or_else(String::new, |part| format!("{:.1} %", part * 100.0))),
            );
            row.push(format!("{:.0}", figures.ops_per_s));
            row.extend([&figures.post, &figures.wire, &figures.visible].map(three));
            row.push(format!("{:.3}", figures.cpu_s_per_gb));
            row.push(format!("{:.2}", figures.waiting));
            row.push(format!("{:.3}", figures.balance));
            row.extend((self.flows.len() > 1).then(|| format!("{:.3}", figures.fairness)));
            row.push(show_size(figures.retried_bytes));
            table.add_row(row.into_iter().map(|text| Field::new(text).set_alignment(CellAlignment::Right)));
        }
        table
    }
}

/// `1 peer`, `2 peers`.
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// p50/p99/p999 in microseconds, three digits of each.
fn three(times: &Percentiles) -> String {
    let digits = |micros: f64| match micros {
        small if small < 10.0 => format!("{small:.2}"),
        middle if middle < 100.0 => format!("{middle:.1}"),
        large => format!("{large:.0}"),
    };
    [times.p50_us, times.p99_us, times.p999_us].map(digits).join("/")
}

fn rails(figures: &Figures) -> String {
    if figures.rails.iter().all(|rail| rail.name.starts_with("stream")) {
        return String::new();
    }
    let all: u64 = figures.rails.iter().map(|rail| rail.bytes).sum();
    let share = |bytes: u64| bytes as f64 * 100.0 / all.max(1) as f64;
    let each =
        figures.rails.iter().map(|rail| format!("{} {} bytes ({:.1} %)", rail.name, rail.bytes, share(rail.bytes)));
    format!("{}: {}\n", figures.cell, each.collect::<Vec<_>>().join(", "))
}

fn flows(report: &Report, figures: &Figures) -> String {
    if report.flows.len() < 2 {
        return String::new();
    }
    let each = report.flows.iter().zip(&figures.flow_gb_per_s);
    let each = each.map(|(flow, rate)| format!("{}→{} {rate:.3}", flow.from, flow.to));
    format!("{}: GB/s {}\n", figures.cell, each.collect::<Vec<_>>().join(", "))
}

fn trouble(figures: &Figures) -> String {
    let Some(first) = &figures.first_failure else { return String::new() };
    format!("{}: {} transfers failed, the first with: {first}\n", figures.cell, figures.failed)
}

fn over_time(figures: &Figures) -> String {
    let timeline = &figures.timeline;
    let top = timeline.gb_per_s.iter().copied().fold(0.0, f64::max);
    let mut out = format!(
        "{}, a step {:.1} s, the highest {top:.3} GB/s\n{}\n",
        figures.cell,
        timeline.step_s,
        timeline.sparkline()
    );
    for (n, event) in timeline.events.iter().enumerate() {
        out += &format!("{:.3} s {}", event.at_s, event.what);
        if let Some(dip) = timeline.dip(n) {
            out += &format!(
                ": {:.3} GB/s before, {:.3} at least, {:.1} s below half, {:.3} GB/s at last",
                dip.before, dip.least, dip.below_half_s, dip.after
            );
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_keep_three_digits() {
        let times = Percentiles { p50_us: 1.234, p99_us: 56.78, p999_us: 12_345.6, ..Percentiles::default() };
        assert_eq!(three(&times), "1.23/56.8/12346");
    }
}
