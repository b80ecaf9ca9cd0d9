//! Rust that asks the compiler about both crates: a function that returns a `Both`.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use crate::read::{Bindings, Declared, Enumeration};

/// Ours, and what the other crate calls it.
pub type Names = BTreeMap<&'static str, &'static str>;

/// What is to be asked.
pub struct Asked<'a> {
    /// The other crate.
    pub krate: &'a str,
    pub ours: &'a Bindings,
    pub theirs: &'a Bindings,
    /// Types that have another name there.
    pub names: Names,
    /// Fields of `ibv_wc` that are private there.
    pub private: &'a [&'a str],
}

impl Display for Asked<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "/// What ours and `{}` declare.", self.krate)?;
        writeln!(f, "pub fn {}() -> Both {{\n let mut both = Both::default();", self.krate)?;
        for (name, our) in &self.ours.structures {
            match self.theirs.structures.get(name) {
                Some(their) => self.structure(f, name, our, their)?,
                None => writeln!(f, " both.structure(structure!({name:?}, kvrail_verbs_sys::{name}));")?,
            }
        }
        for (name, our) in &self.ours.enumerations {
            self.enumeration(f, name, our)?;
        }
        writeln!(f, " both\n}}\n")
    }
}

impl Asked<'_> {
    fn structure(&self, f: &mut Formatter<'_>, name: &str, our: &Declared, their: &Declared) -> fmt::Result {
        let their_name = self.names.get(name).copied().unwrap_or(name);
        let (here, there) = (format!("kvrail_verbs_sys::{name}"), format!("{}::{their_name}", self.krate));
        writeln!(f, " both.structure(structure!({name:?}, {here}, {there}).with(vec![")?;
        for field in &our.fields {
            let other = their.fields.iter().find(|other| other.ours == field.ours);
            if other.is_none() && name == "ibv_wc" && self.private.contains(&field.ours.as_str()) {
                continue;
            }
            let is_sized = !our.is_union && !their.is_union && other.is_some_and(|other| other.has_size);
            let theirs = other.map(|other| place(&there, &other.theirs, is_sized));
            let theirs = theirs.unwrap_or_else(|| "None".to_owned());
            writeln!(f, "  field({:?}, {}, {theirs}),", field.ours, place(&here, &field.ours, is_sized))?;
        }
        let is_here = |name: &str| our.fields.iter().any(|field| field.ours == name);
        for field in their.fields.iter().filter(|field| !is_here(&field.ours)) {
            writeln!(f, "  field({:?}, None, {}),", field.theirs, place(&there, &field.theirs, false))?;
        }
        writeln!(f, " ]));")
    }

    fn enumeration(&self, f: &mut Formatter<'_>, name: &str, our: &Enumeration) -> fmt::Result {
        let size = |of: Option<String>| of.map_or("None".to_owned(), |of| format!("Some(size_of::<{of}>())"));
        let value = |path: Option<String>| path.map_or("None".to_owned(), |path| format!("Some({path} as i64)"));
        let here = |path: String| format!("kvrail_verbs_sys::{path}");
        let there = |path: String| format!("{}::{path}", self.krate);
        let sizes = (size(self.ours.type_of(name).map(here)), size(self.theirs.type_of(name).map(there)));
        writeln!(f, " both.enumeration({name:?}, {}, {}, vec![", sizes.0, sizes.1)?;
        let others = self.theirs.enumerations.get(name).into_iter().flat_map(|e| &e.constants);
        for constant in our.constants.iter().chain(others.filter(|name| !our.constants.contains(*name))) {
            let ours = value(self.ours.constant(name, constant).map(here));
            let theirs = value(self.theirs.constant(name, constant).map(there));
            writeln!(f, "  ({constant:?}, {ours}, {theirs}),")?;
        }
        writeln!(f, " ]);")
    }
}

fn place(of: &str, field: &str, is_sized: bool) -> String {
    format!("Some(place!({of}, {field}{}))", if is_sized { ", sized" } else { "" })
}
