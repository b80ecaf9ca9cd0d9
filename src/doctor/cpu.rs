//! Cores, and the instruction sets that the built-in executor has kernels for.

use kvrail_engine::cpu::Isa;
use serde_json::json;

use super::{
    finding::{Finding, State},
    root::Root,
};

/// What `/proc/cpuinfo` calls the features of a kernel set, fastest first: the same list that the executor asks the CPU for.
const KERNELS: [(Isa, &[&str]); 3] = [
    (Isa::Avx512, &["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"]),
    (Isa::Avx2, &["avx2", "fma", "f16c"]),
    (Isa::Neon, &["asimd"]),
];

/// Looks at the processor.
pub fn examine(root: &Root) -> Vec<Finding> {
    let Some(info) = root.read("proc/cpuinfo") else {
        let says = format!("/proc/cpuinfo cannot be read; the executor would use its {} kernels", Isa::best());
        return vec![Finding::new("cpu", State::Note, says)];
    };
    let field = |names: &[&str]| {
        info.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            names.contains(&key.trim()).then(|| value.trim().to_owned())
        })
    };
    let cores = info.lines().filter(|line| line.split(':').next().is_some_and(|key| key.trim() == "processor")).count();
    let model = field(&["model name", "Model"]).unwrap_or_else(|| "unknown model".into());
    let flags = field(&["flags", "Features"]).unwrap_or_default();
    let has = |feature: &&str| flags.split_whitespace().any(|flag| flag == *feature);
    let best = KERNELS.iter().find(|(_, features)| features.iter().all(&has));
    let isa = best.map_or(Isa::Scalar, |(isa, _)| *isa);
    let facts = json!({"model": model, "cores": cores, "kernels": isa.to_string()});
    let says = format!("{cores} cores ({model}); the built-in executor will use its {isa} kernels");
    let mut findings = vec![if isa == Isa::Scalar {
        let advice = "prompts and answers are computed several times slower; a CPU with AVX2, FMA and F16C, or a virtual \
                      machine that passes them on, would help";
        Finding::new("cpu", State::Missing, says).advise(advice).facts(facts)
    } else {
        Finding::new("cpu", State::Good, says).facts(facts)
    }];
    findings.extend(quota(root, cores));
    findings
}

/// A limit that the control group sets on processor time (`cpu.max`: quota and period in microseconds).
fn quota(root: &Root, cores: usize) -> Option<Finding> {
    let text = root.read("sys/fs/cgroup/cpu.max")?;
    let (quota, period) = text.split_once(' ')?;
    let share = quota.parse::<f64>().ok()? / period.parse::<f64>().ok().filter(|period| *period > 0.0)?;
    if share >= cores as f64 {
        return None;
    }
    let says = format!("the control group allows {share:.1} cores of {cores}");
    let advice = "more threads than that make each other wait: give --threads, or raise the container's CPU limit";
    Some(Finding::new("cpu quota", State::Missing, says).advise(advice).facts(json!({"cores": share})))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::root::tree;

    fn kernels(flags: &str) -> (String, State) {
        let info =
            format!("processor\t: 0\nmodel name\t: Test CPU\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: {flags}");
        let (_dir, root) = tree(&[("proc/cpuinfo", &info)]);
        let finding = examine(&root).remove(0);
        assert!(finding.says.starts_with("2 cores (Test CPU)"), "{}", finding.says);
        (finding.facts["kernels"].as_str().unwrap().to_owned(), finding.state)
    }

    #[test]
    fn kernels_follow_the_features() {
        assert_eq!(kernels("sse2 avx2 fma f16c"), ("avx2".into(), State::Good));
        let vnni = "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni";
        assert_eq!(kernels(vnni), ("avx512".into(), State::Good));
        assert_eq!(kernels("sse2 avx2 fma"), ("scalar".into(), State::Missing), "f16c is missing");
    }

    #[test]
    fn what_the_file_says_is_what_the_executor_finds_here() {
        let findings = examine(&Root::new("/"));
        if let Some(kernels) = findings[0].facts["kernels"].as_str() {
            assert_eq!(kernels, Isa::best().to_string());
        }
    }

    #[test]
    fn a_quota_below_the_cores_is_told() {
        let cpuinfo = ("proc/cpuinfo", "processor: 0\nprocessor: 1\n");
        let (_dir, root) = tree(&[cpuinfo, ("sys/fs/cgroup/cpu.max", "150000 100000")]);
        assert!(examine(&root)[1].says.contains("1.5 cores of 2"));
        let (_dir, root) = tree(&[cpuinfo, ("sys/fs/cgroup/cpu.max", "max 100000")]);
        assert_eq!(examine(&root).len(), 1);
    }
}
