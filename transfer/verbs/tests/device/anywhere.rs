//! What needs no device.

use std::error::Error as _;
use std::path::Path;

use kvrail_verbs::{Error, Unavailable, Verbs};

use crate::Outcome;

pub fn absent_library() -> Outcome {
    let path = Path::new("/nonexistent/libibverbs.so.1");
    // SAFETY: there is nothing to run.
    let refused = unsafe { Verbs::open_at(path) }.expect_err("opened a file that does not exist");
    let Unavailable::NotOpened { tried } = &refused else { panic!("{refused}") };
    assert_eq!(tried[0].0, path);
    let error = Error::from(refused);
    assert!(error.to_string().contains("/nonexistent"), "{error}");
    assert_eq!(error.errno(), None);
    Ok(())
}

pub fn no_devices() -> Outcome {
    match Verbs::open() {
        Err(Unavailable::NotOpened { tried }) => assert_eq!(tried.len(), 2, "both names were tried: {tried:?}"),
        Err(other) => panic!("{other}"),
        Ok(verbs) => match verbs.devices() {
            Ok(devices) => assert_eq!(devices.iter().count(), devices.len()),
            Err(error) => {
                assert!(error.errno().is_some() && error.source().is_some(), "{error}");
                assert_eq!(error.to_string(), "ibv_get_device_list on this machine");
            }
        },
    }
    Ok(())
}
