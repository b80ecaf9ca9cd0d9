//! The rows of a service's settings.

use clap::{Arg, ArgAction};

use super::{ConfigError, Resolved, value::Value};

/// One setting, as data.
#[derive(Debug)]
pub struct Setting {
    /// The service that it belongs to.
    pub service: &'static str,
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
    /// Whether the help text leaves it out: for tests of the system, not for people.
    pub hidden: bool,
}

impl Setting {
    /// The row of a setting of type `T`.
    pub const fn of<T: Value>(
        service: &'static str,
        name: &'static str,
        doc: &'static str,
        default: &'static str,
        hidden: bool,
    ) -> Self {
        Self {
            service,
            name,
            doc,
            default,
            what: T::WHAT,
            example: T::EXAMPLE,
            placeholder: T::PLACEHOLDER,
            secret: T::SECRET,
            switch: T::SWITCH,
            hidden,
        }
    }

    /// Name as flag and in the file.
    pub fn key(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Name as environment variable.
    pub fn env(&self) -> String {
        format!("KVRAIL_{}_{}", self.service, self.name).to_ascii_uppercase()
    }

    /// The flag. Its value is checked by [`super::load`], which says more about a bad one than clap can.
    pub fn arg(&self) -> Arg {
        let default = match (self.default, self.secret) {
            ("", _) | (_, true) => String::new(),
            (text, false) => format!(" [default: {text}]"),
        };
        let help = format!("{}{default} [env: {}]", self.doc.trim().trim_end_matches('.'), self.env());
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

/// A service's settings: a struct made by [`settings!`].
pub trait Settings: Sized {
    /// Name of the service: the subcommand, and its section in the file.
    const SERVICE: &'static str;
    /// The rows.
    const TABLE: &'static [Setting];

    /// Reads the struct out of resolved values.
    ///
    /// # Errors
    /// [`ConfigError`] for the first value that is missing or bad.
    fn read(values: &Resolved) -> Result<Self, ConfigError>;
}

/// Declares a service's settings: `name: Type = "default";`, the doc comment is the help text; `, hidden` leaves it out.
macro_rules! settings {
    (
        $(#[doc = $about:literal])+
        pub struct $struct:ident for $service:literal {
            $($(#[doc = $doc:literal])+ $name:ident: $ty:ty = $default:literal $(, $hidden:ident)?;)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug)]
        pub struct $struct {
            $($(#[doc = $doc])+ pub $name: $ty,)+
        }

        impl $crate::config::Settings for $struct {
            const SERVICE: &'static str = $service;
            const TABLE: &'static [$crate::config::Setting] =
                &[$($crate::config::Setting::of::<$ty>(
                    $service,
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
