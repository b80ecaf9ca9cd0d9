//! Writes the seed corpus: `seeds DIRECTORY` makes a directory of files for each target.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: seeds DIRECTORY");
        std::process::exit(2);
    };
    for (target, inputs) in kvrail_transfer_fuzz::seeds::all() {
        std::fs::create_dir_all(directory.join(target))?;
        for (number, input) in inputs.iter().enumerate() {
            std::fs::write(directory.join(target).join(format!("seed-{number}")), input)?;
        }
    }
    Ok(())
}
