//! What the guest is told: a directory of small files that its `init` reads, and where it leaves the exit status.

use std::ffi::{OsStr, OsString};
use std::fs::{Permissions, create_dir, read_to_string, write};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::run::Args;

/// Programs of the guest, carried along so that a built machine depends on no checkout.
const PROGRAMS: &[(&str, &str)] = &[
    ("init", include_str!("../guest/init")),
    ("links", include_str!("../guest/links")),
    ("bin/rail", include_str!("../rail")),
];

/// Where distributions keep programs; some of them are not on every user's PATH.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The directory of one run.
pub struct Control(tempfile::TempDir);

impl Control {
    /// Writes down what `args` ask for, to be run from `directory`.
    pub fn new(args: &Args, directory: &Path) -> Result<Self> {
        // Its name is in the guest's command line: it tells whose guest a process is.
        let prefix = format!("kvrail-softroce-{}-", std::process::id());
        let temporary = tempfile::Builder::new().prefix(&prefix).tempdir()?;
        let path = temporary.path();
        // The path goes into the kernel's command line, and that into words at its blanks.
        ensure!(
            !path.as_os_str().as_bytes().iter().any(|b| b" \t\n\",".contains(b)),
            "the directory for temporary files, {}, has a blank, comma or quote in its name: set TMPDIR to another",
            path.display()
        );
        for sub in ["bin", "root", "memory"] {
            create_dir(path.join(sub))?;
        }
        for (name, text) in PROGRAMS {
            write(path.join(name), text)?;
            std::fs::set_permissions(path.join(name), Permissions::from_mode(0o755))?;
        }
        write(path.join("machine"), machine(args.hosts, args.rails))?;
        write(path.join("shared"), lines(&shared(directory, &args.rw)?))?;
        write(path.join("command"), command(args, directory)?)?;
        Ok(Self(temporary))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Whether the guest came as far as to run the command.
    pub fn started(&self) -> bool {
        self.path().join("started").exists()
    }

    /// The exit status that the guest left, if it did.
    pub fn status(&self) -> Result<Option<u8>> {
        match read_to_string(self.path().join("status")) {
            Ok(text) => Ok(text.trim().parse().ok()),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

/// Settings for `init`, in its own language.
fn machine(hosts: u8, rails: u8) -> String {
    let cpu = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mhz = cpu.lines().find(|line| line.starts_with("cpu MHz")).unwrap_or_default();
    format!("hosts={hosts}\nrails={rails}\ncpu_mhz='{mhz}'\n")
}

/// The directories that the guest may change: the working directory, unless it is the root of all, and those named.
fn shared(directory: &Path, named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    if directory != Path::new("/") {
        all.push(directory.to_owned());
    }
    for path in named {
        let absolute = path.canonicalize().with_context(|| format!("--rw {}", path.display()))?;
        ensure!(absolute.is_dir(), "--rw {} is no directory", path.display());
        ensure!(absolute != Path::new("/"), "--rw / would give the guest all of the host: name a directory in it");
        all.push(absolute);
    }
    for path in &all {
        ensure!(!path.as_os_str().as_bytes().contains(&b'\n'), "{} has a line break in its name", path.display());
    }
    // A directory comes before those in it, and covers nothing of them.
    all.sort();
    all.dedup();
    Ok(all)
}

fn lines(paths: &[PathBuf]) -> Vec<u8> {
    paths.iter().flat_map(|path| [path.as_os_str().as_bytes(), b"\n"].concat()).collect()
}

/// The script that becomes the command.
fn command(args: &Args, directory: &Path) -> Result<Vec<u8>> {
    let mut script = b"cd ".to_vec();
    script.extend(quote(directory.as_os_str()));
    script.extend(b" || exit 126\n");
    let mut path = OsString::from("/run/softroce/bin:");
    if let Some(here) = std::env::var_os("PATH") {
        path.push(here);
        path.push(":");
    }
    path.push(SYSTEM_PATH);
    let mut environment = vec![(OsString::from("PATH"), path), ("LANG".into(), "C.UTF-8".into())];
    environment.push(("HOME".into(), std::env::var_os("HOME").unwrap_or_else(|| "/".into())));
    // The consoles look like a terminal, and what is printed may go into a file.
    environment.push(("TERM".into(), "dumb".into()));
    environment.push(("NO_COLOR".into(), "1".into()));
    for name in &args.env {
        let Some(value) = std::env::var_os(name) else { bail!("--env {name}: it is not set here") };
        environment.push((name.into(), value));
    }
    for (name, value) in environment {
        script.extend([&b"export "[..], name.as_bytes(), b"=", &quote(&value), b"\n"].concat());
    }
    script.extend(b"exec");
    for word in &args.command {
        script.push(b' ');
        script.extend(quote(word));
    }
    script.push(b'\n');
    Ok(script)
}

/// `word` as the shell takes it for one word, whatever is in it.
fn quote(word: &OsStr) -> Vec<u8> {
    let inner: Vec<_> = word.as_bytes().split(|b| *b == b'\'').collect();
    [&b"'"[..], &inner.join(&br"'\''"[..]), b"'"].concat()
}

/// Accepts what a shell takes for a variable's name.
pub fn variable(name: &str) -> Result<String, String> {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    if name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit()) {
        return Ok(name.into());
    }
    Err("give the name of a variable that is set here, such as RUST_LOG; its value is passed on".into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn any_word_survives_the_shell() {
        for word in ["", " ", "it's", "a  b", "$HOME", "`id`", "\"", "\\", "line\nbreak", "*", "''", "ä"] {
            let mut script = b"printf %s ".to_vec();
            script.extend(quote(OsStr::new(word)));
            let printed = Command::new("sh").arg("-c").arg(OsString::from_vec(script)).output().unwrap().stdout;
            assert_eq!(String::from_utf8_lossy(&printed), word);
        }
        assert_eq!(quote(OsStr::from_bytes(b"\xff'")), b"'\xff'\\'''");
    }

    #[test]
    fn variables_are_names_that_a_shell_takes() {
        assert!(variable("RUST_LOG").is_ok() && variable("_1").is_ok());
        for wrong in ["", "1A", "A=b", "A B", "A;id", "Ä"] {
            assert!(variable(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shared_directories_are_absolute_there_and_not_everything() {
        let here = tempfile::tempdir().unwrap();
        let sub = here.path().join("sub");
        create_dir(&sub).unwrap();
        let got = shared(here.path(), &[sub.join("."), here.path().into()]).unwrap();
        assert_eq!(got, [here.path(), &sub], "sorted, each once");
        assert!(shared(Path::new("/"), &[]).unwrap().is_empty(), "the root is not shared unasked");
        assert!(shared(here.path(), &["/".into()]).is_err(), "nor asked");
        assert!(shared(here.path(), &[here.path().join("none")]).is_err(), "not there");
        write(sub.join("file"), "").unwrap();
        assert!(shared(here.path(), &[sub.join("file")]).is_err(), "no directory");
    }
}
