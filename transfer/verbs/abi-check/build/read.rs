//! Bindings as bindgen writes them, in any of its styles: what they declare, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::Path;

use syn::{Fields, ImplItem, Item, Type};

/// A structure or union as its declaration reads.
#[derive(Clone, Default)]
pub struct Declared {
    pub is_union: bool,
    pub fields: Vec<Field>,
}

#[derive(Clone)]
pub struct Field {
    /// What it is called in ours.
    pub ours: String,
    /// What it is called where it was read.
    pub theirs: String,
    /// Whether it has a size of its own: parts of a union that an old bindgen made a structure have none.
    pub has_size: bool,
}

/// One file of bindings.
#[derive(Default)]
pub struct Bindings {
    pub structures: BTreeMap<String, Declared>,
    /// Those that are a type or a module in Rust, by name.
    pub enumerations: BTreeMap<String, Enumeration>,
    /// Constants that belong to no type in Rust.
    loose: BTreeSet<String>,
    aliases: BTreeSet<String>,
}

/// An enumeration of C.
#[derive(Default)]
pub struct Enumeration {
    /// What makes a number of a constant.
    tail: &'static str,
    is_module: bool,
    pub constants: BTreeSet<String>,
}

impl Bindings {
    /// Reads what bindgen wrote.
    pub fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut all = Self::default();
        for item in syn::parse_file(&text)?.items {
            all.note(item);
        }
        Ok(all)
    }

    fn note(&mut self, item: Item) {
        match item {
            Item::Struct(item) => match item.fields {
                Fields::Named(fields) => self.declare(item.ident.to_string(), false, &fields),
                _ => {
                    self.enumeration(item.ident.to_string(), ".0");
                }
            },
            Item::Union(item) => self.declare(item.ident.to_string(), true, &item.fields),
            Item::Impl(item) if item.trait_.is_none() => {
                let Type::Path(of) = *item.self_ty else { return };
                let Some(of) = of.path.get_ident().map(ToString::to_string) else { return };
                let constants = item.items.into_iter().filter_map(|item| match item {
                    ImplItem::Const(item) => Some(item.ident.to_string()),
                    _ => None,
                });
                let constants: Vec<_> = constants.collect();
                if !constants.is_empty() {
                    self.enumeration(of, ".0").constants.extend(constants);
                }
            }
            Item::Enum(item) => {
                let variants = item.variants.into_iter().map(|variant| variant.ident.to_string());
                self.enumeration(item.ident.to_string(), "").constants.extend(variants);
            }
            Item::Mod(item) => {
                let items = item.content.map(|(_, items)| items).unwrap_or_default();
                let constants = items.into_iter().filter_map(|item| match item {
                    Item::Const(item) => Some(item.ident.to_string()),
                    _ => None,
                });
                let constants: Vec<_> = constants.collect();
                let enumeration = self.enumeration(item.ident.to_string(), "");
                enumeration.is_module = true;
                enumeration.constants.extend(constants);
            }
            Item::Const(item) => {
                self.loose.insert(item.ident.to_string());
            }
            Item::Type(item) => {
                self.aliases.insert(item.ident.to_string());
            }
            _ => {}
        }
    }

    fn enumeration(&mut self, name: String, tail: &'static str) -> &mut Enumeration {
        let enumeration = self.enumerations.entry(name).or_default();
        enumeration.tail = tail;
        enumeration
    }

    /// Notes a structure, unless nothing of it is known, or it is no structure of C's.
    fn declare(&mut self, name: String, is_union: bool, fields: &syn::FieldsNamed) {
        let has_size = |field: &syn::Field| match &field.ty {
            Type::Path(path) => path.path.segments.last().is_none_or(|last| last.ident != "__BindgenUnionField"),
            _ => true,
        };
        let named = fields.named.iter().filter_map(|field| {
            let name = field.ident.as_ref()?.to_string();
            Some(Field { ours: name.clone(), theirs: name, has_size: has_size(field) })
        });
        let fields: Vec<_> = named.filter(|field| field.ours != "bindgen_union_field").collect();
        let is_foreign = fields.iter().any(|field| field.ours == "_opaque" || field.ours == "__library");
        if !is_foreign && !name.starts_with("__") {
            self.structures.insert(name, Declared { is_union, fields });
        }
    }

    /// What a constant is called in Rust; `None` if it is not there.
    pub fn constant(&self, of: &str, name: &str) -> Option<String> {
        match self.enumerations.get(of) {
            Some(e) => e.constants.contains(name).then(|| format!("{of}::{name}{}", e.tail)),
            None => self.loose.contains(name).then(|| name.to_owned()),
        }
    }

    /// The type of an enumeration, if it is there.
    pub fn type_of(&self, of: &str) -> Option<String> {
        match self.enumerations.get(of) {
            Some(e) => Some(if e.is_module { format!("{of}::Type") } else { of.to_owned() }),
            None => self.aliases.contains(of).then(|| of.to_owned()),
        }
    }
}
