//! The rows of a service's settings.

use clap::{Arg, ArgAction};

use super::{ConfigError, Resolved, value::Value};

/// One setting, as data.
#[derive(Debug)]
pub struct Setting {
    /// Name in `snake_case`.
    pub name: &'static str,
    /// What it does; the first line is the short help.
    pub doc: &'static str,
    /// Text of the default; empty for none.
    pub default: &'static str,
    /// What a value must be.
    pub what: &'static str,
    /// An example of one.
    pub example: &'static str,
    /// Placeholder in the help text.
    pub placeholder: &'static str,
    /// Whether it must not be printed.
    pub secret: bool,
    /// Whether the flag alone means `true`.
    pub switch: bool,
    /// Whether somebody who gives it must give more than nothing.
    pub words: bool,
    /// Whether the help text leaves it out: for tests of the system, not for people.
    pub hidden: bool,
}

impl Setting {
    /// The row of a setting of type `T`.
    pub const fn of<T: Value>(name: &'static str, doc: &'static str, default: &'static str, hidden: bool) -> Self {
        Self {
            name,
            doc,
            default,
            what: T::WHAT,
            example: T::EXAMPLE,
            placeholder: T::PLACEHOLDER,
            secret: T::SECRET,
            switch: T::SWITCH,
            words: T::WORDS,
            hidden,
        }
    }

    /// Name as flag and in the file.
    pub fn key(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Name as environment variable of a service.
    pub fn env(&self, service: &str) -> String {
        format!("KVRAIL_{service}_{}", self.name).to_ascii_uppercase()
    }

    /// The flag of a service. Its value is checked by [`super::load`], which says more about a bad one than clap can.
    pub fn arg(&self, service: &str) -> Arg {
        let default = match (self.default, self.secret) {
            ("", _) | (_, true) => String::new(),
            (text, false) => format!(" [default: {text}]"),
        };
        let help = format!("{}{default} [env: {}]", self.doc.trim().trim_end_matches('.'), self.env(service));
        let arg = Arg::new(self.name)
            .long(self.key())
            .value_name(self.placeholder)
            .help(help)
            .hide(self.hidden)
            .allow_hyphen_values(true)
            .action(ArgAction::Set);
        if self.switch { arg.num_args(0..=1).require_equals(true).default_missing_value("true") } else { arg }
    }
}

/// What takes settings: a subcommand. Its settings come in groups, which several services may share.
#[derive(Debug)]
pub struct Service {
    /// The subcommand, and the section in the file.
    pub name: &'static str,
    /// Its groups of settings.
    pub groups: &'static [&'static [Setting]],
}

impl Service {
    /// All its settings.
    pub fn settings(&self) -> impl Iterator<Item = &'static Setting> + use<> {
        self.groups.iter().copied().flatten()
    }
}

/// A group of settings: a struct made by [`settings!`].
pub trait Settings: Sized {
    /// The rows.
    const ROWS: &'static [Setting];

    /// Reads the struct out of resolved values.
    ///
    /// # Errors
    /// [`ConfigError`] for the first value that is missing or bad.
    fn read(values: &Resolved) -> Result<Self, ConfigError>;
}

/// Declares a group of settings: `name: Type = "default";`, the doc comment is the help text; `, hidden` leaves it out.
macro_rules! settings {
    (
        $(#[doc = $about:literal])+
        pub struct $struct:ident {
            $($(#[doc = $doc:literal])+ $name:ident: $ty:ty = $default:literal $(, $hidden:ident)?;)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug)]
        pub struct $struct {
            $($(#[doc = $doc])+ pub $name: $ty,)+
        }

        impl $crate::config::Settings for $struct {
            const ROWS: &'static [$crate::config::Setting] = &[$($crate::config::Setting::of::<$ty>(
                stringify!($name),
                concat!($($doc),+),
                $default,
                !stringify!($($hidden)?).is_empty(),
            )),+];

            fn read(values: &$crate::config::Resolved) -> Result<Self, $crate::config::ConfigError> {
                Ok(Self { $($name: values.get(stringify!($name))?),+ })
            }
        }
    };
}

pub(crate) use settings;
