//! What counts as equal, as newer, and as wrong.

/// Size and alignment of a structure, in bytes.
pub(crate) type Shape = (usize, usize);

/// Where a field lies, and its size if that can be asked, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: usize,
    pub(crate) size: Option<usize>,
}

/// A field on both sides.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    name: &'static str,
    ours: Option<Place>,
    theirs: Option<Place>,
}

/// A structure on both sides.
#[derive(Clone, Debug)]
pub(crate) struct Structure {
    pub(crate) name: &'static str,
    pub(crate) ours: Shape,
    pub(crate) theirs: Option<Shape>,
    pub(crate) fields: Vec<Field>,
}

impl Structure {
    pub(crate) fn with(self, fields: Vec<Field>) -> Self {
        Self { fields, ..self }
    }
}

pub(crate) fn field(name: &'static str, ours: Option<Place>, theirs: Option<Place>) -> Field {
    Field { name, ours, theirs }
}

/// Size of what a function takes out of a structure, which is never called.
pub(crate) fn size_of_part<S, T>(_: fn(&S) -> &T) -> usize {
    size_of::<T>()
}

/// A structure, and its counterpart if there is one.
macro_rules! structure {
    ($name:literal, $ours:ty $(, $theirs:ty)?) => {{
        let theirs = None $(.or(Some((size_of::<$theirs>(), align_of::<$theirs>()))))?;
        let ours = (size_of::<$ours>(), align_of::<$ours>());
        super::compare::Structure { name: $name, ours, theirs, fields: Vec::new() }
    }};
}

/// Where a field lies.
macro_rules! place {
    ($of:ty, $field:ident) => {
        Place { offset: std::mem::offset_of!($of, $field), size: None }
    };
    ($of:ty, $field:ident, sized) => {
        Place {
            offset: std::mem::offset_of!($of, $field),
            size: Some(super::compare::size_of_part(|of: &$of| &of.$field)),
        }
    };
}

pub(crate) use {place, structure};

/// Structures that grow at their beginning: libibverbs finds them by what stands at their end.
const GROW_AT_THE_FRONT: &[&str] = &["verbs_context"];

/// What two crates declare.
#[derive(Clone, Debug, Default)]
pub struct Both {
    structures: Vec<Structure>,
    enumerations: Vec<Enumeration>,
}

/// Size of the type, if it is there, on both sides; constants with their values.
#[derive(Clone, Debug)]
struct Enumeration {
    name: &'static str,
    ours: Option<usize>,
    theirs: Option<usize>,
    constants: Vec<Constant>,
}

type Constant = (&'static str, Option<i64>, Option<i64>);

/// What came of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Structures and unions that are equal.
    pub structures: usize,
    /// Fields that are equal.
    pub fields: usize,
    /// Constants that are equal.
    pub constants: usize,
    /// What only ours have: newer than the other's headers.
    pub newer_here: Vec<String>,
    /// Structures and enumerations of ours that the other crate does not declare.
    pub absent: Vec<String>,
    /// What only the other has: newer than ours.
    pub newer_there: Vec<String>,
    /// What is wrong.
    pub differences: Vec<String>,
}

impl Both {
    pub(crate) fn structure(&mut self, structure: Structure) {
        self.structures.push(structure);
    }

    pub(crate) fn enumeration(
        &mut self,
        name: &'static str,
        ours: Option<usize>,
        theirs: Option<usize>,
        constants: Vec<Constant>,
    ) {
        self.enumerations.push(Enumeration { name, ours, theirs, constants });
    }

    /// Compares them.
    pub fn report(&self) -> Report {
        let mut report = Report::default();
        self.structures.iter().for_each(|structure| report.look_at(structure));
        self.enumerations.iter().for_each(|enumeration| report.look_at_values(enumeration));
        report
    }
}

impl Report {
    fn look_at(&mut self, structure: &Structure) {
        let Structure { name, ours, fields, .. } = structure;
        let Some(theirs) = structure.theirs else {
            self.absent.push((*name).to_owned());
            return;
        };
        let before = self.differences.len();
        let from = |size: usize, place: &Place| match GROW_AT_THE_FRONT.contains(name) {
            true => Place { offset: size - place.offset, ..*place },
            false => *place,
        };
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for field in fields {
            let path = format!("{name}::{}", field.name);
            match (&field.ours, &field.theirs) {
                (Some(a), Some(b)) if from(ours.0, a) == from(theirs.0, b) => self.fields += 1,
                (Some(a), Some(b)) => self.differences.push(format!("{path}: {a:?} here, {b:?} there")),
                (Some(_), None) => here.push(path),
                (None, Some(_)) => there.push(path),
                (None, None) => {}
            }
        }
        if !here.is_empty() && !there.is_empty() {
            self.differences.push(format!("{name}: only here {}, only there {}", here.join(", "), there.join(", ")));
        }
        let is_of_size = match (here.is_empty(), there.is_empty()) {
            (true, true) => ours.0 == theirs.0,
            (false, _) => ours.0 >= theirs.0,
            (true, false) => ours.0 <= theirs.0,
        };
        if !is_of_size || ours.1 != theirs.1 {
            self.differences.push(format!("{name}: size and alignment {ours:?} here, {theirs:?} there"));
        }
        self.structures += usize::from(self.differences.len() == before);
        self.newer_here.extend(here);
        self.newer_there.extend(there);
    }

    fn look_at_values(&mut self, enumeration: &Enumeration) {
        let Enumeration { name, ours, theirs, constants } = enumeration;
        if theirs.is_none() {
            self.absent.push((*name).to_owned());
            return;
        }
        if ours != theirs {
            self.differences.push(format!("{name}: size {ours:?} here, {theirs:?} there"));
        }
        for (constant, ours, theirs) in constants {
            match (ours, theirs) {
                (Some(a), Some(b)) if a == b => self.constants += 1,
                (Some(a), Some(b)) => self.differences.push(format!("{constant}: {a} here, {b} there")),
                (Some(_), None) => self.newer_here.push((*constant).to_owned()),
                (None, _) => self.newer_there.push((*constant).to_owned()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: usize, size: usize) -> Option<Place> {
        Some(Place { offset, size: Some(size) })
    }

    fn report(name: &'static str, ours: Shape, theirs: Shape, fields: Vec<Field>) -> Report {
        let mut both = Both::default();
        both.structure(Structure { name, ours, theirs: Some(theirs), fields });
        both.report()
    }

    #[test]
    fn what_lies_elsewhere_or_has_another_size_is_told() {
        let same = || field("a", at(0, 4), at(0, 4));
        let equal = report("s", (8, 4), (8, 4), vec![same(), field("b", at(4, 4), at(4, 4))]);
        assert_eq!(equal, Report { structures: 1, fields: 2, ..Report::default() });
        for wrong in [
            report("s", (8, 4), (8, 4), vec![same(), field("b", at(4, 4), at(6, 4))]),
            report("s", (8, 4), (8, 4), vec![same(), field("b", at(4, 4), at(4, 2))]),
            report("s", (8, 4), (8, 8), vec![same()]),
            report("s", (8, 4), (12, 4), vec![same()]),
        ] {
            assert_eq!((wrong.structures, wrong.differences.len()), (0, 1), "{wrong:?}");
        }
    }

    #[test]
    fn a_newer_field_makes_longer_and_a_renamed_one_is_wrong() {
        let newer = report("s", (12, 4), (8, 4), vec![field("a", at(0, 4), at(0, 4)), field("b", at(8, 4), None)]);
        assert_eq!((newer.differences.len(), newer.newer_here), (0, vec!["s::b".to_owned()]));
        let shorter = report("s", (4, 4), (8, 4), vec![field("b", at(0, 4), None)]);
        assert_eq!(shorter.differences.len(), 1);
        let renamed = report("s", (4, 4), (4, 4), vec![field("b", at(0, 4), None), field("c", None, at(0, 4))]);
        assert_eq!(renamed.differences.len(), 1);
    }

    #[test]
    fn what_grows_at_its_front_is_measured_from_its_end() {
        let fields = || vec![field("new", at(0, 8), None), field("a", at(8, 8), at(0, 8))];
        assert_eq!(report("verbs_context", (16, 8), (8, 8), fields()).differences.len(), 0);
        assert_eq!(report("another", (16, 8), (8, 8), fields()).differences.len(), 1);
    }

    #[test]
    fn another_value_is_wrong() {
        let mut both = Both::default();
        let constants = vec![("A", Some(1), Some(1)), ("B", Some(2), Some(3)), ("C", Some(4), None)];
        both.enumeration("e", Some(4), Some(4), constants);
        let report = both.report();
        assert_eq!((report.constants, report.differences.len(), report.newer_here.len()), (1, 1, 1));
    }
}
