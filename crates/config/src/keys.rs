//! Keys of the configuration: one description each, for the reader, the defaults, the schema and
//! the documents.
//!
//! [`settings!`] declares the settings of one table. For each key it takes the documentation for
//! operators with an example, the name, the type of the value with its bounds, and the default. A
//! [`Key`] is such a type: it parses a value and describes it as a [`ValueShape`].
//!
//! Decision: docs/decisions/0020-configuration-and-schema.md

#![expect(clippy::disallowed_types, reason = "defaults are written here, no payload passes")]

mod documentation;
pub(crate) mod shape;

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use ipnet::IpNet;
use serde_json::Value;
use strum::VariantArray;

use crate::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::reader::value;
pub(super) use documentation::{Documentation, enabled};
pub(super) use shape::ValueShape;

/// Description of one key, for the documents.
#[derive(Clone)]
pub(super) struct KeySpec {
    pub(super) name: &'static str,
    pub(super) shape: ValueShape,
    pub(super) default: DefaultValue,
    /// Text for operators.
    pub(super) documentation: Documentation,
    /// Table in which the keys of this key are described, if not here.
    pub(super) described_at: Option<&'static str>,
}

/// Value of a key that is not set.
#[derive(Clone)]
pub(super) enum DefaultValue {
    /// None: the key must be set.
    Required,
    /// None: the key is optional.
    None,
    /// This value.
    Value(Value),
    /// A value that depends on other keys or on the environment; the text describes it.
    Described(&'static str),
}

impl KeySpec {
    /// Creates the description of a table or a list of tables.
    pub(super) fn new(name: &'static str, shape: ValueShape, doc: &[&str]) -> Self {
        let documentation = Documentation::new(doc);
        Self { name, shape, default: DefaultValue::None, documentation, described_at: None }
    }

    /// Makes a key of an upstream's own table of the key of the table `from`, which describes it.
    pub(super) fn inherited(self, from: &'static str, text: &'static str) -> Self {
        let shape = match self.shape {
            ValueShape::Table(keys) => {
                ValueShape::Table(keys.into_iter().map(|key| key.inherited(from, text)).collect())
            }
            plain => plain,
        };
        let default = match self.default {
            DefaultValue::None => DefaultValue::None,
            _ => DefaultValue::Described(text),
        };
        Self { shape, default, described_at: Some(from), ..self }
    }
}

// === Settings of a table ===

/// Settings whose keys [`settings!`] describes.
pub(super) trait Described: Default + Clone {
    /// Documentation of the table, for operators.
    const DOC: &'static [&'static str];

    /// Reads the keys; missing and invalid ones are as in `inherited`.
    fn read_keys(t: &TableReader<'_>, inherited: &Self) -> Self;

    /// Describes the keys.
    fn keys() -> Vec<KeySpec>;

    /// Reads the keys of a table without inheritance.
    fn read(t: &TableReader<'_>) -> Self {
        Self::read_keys(t, &Self::default())
    }
}

/// Declares a struct of settings, or describes the fields of a struct of another module (`for`).
///
/// A field is `name: Type = default, key;`, or `name: key;` in a struct of another module, whose
/// `Default` has the defaults. A name in parentheses is that of the key, if it differs. Fields
/// after `=>` are no keys: the reader of the table computes them.
macro_rules! settings {
    (
        $(#[doc = $table_doc:literal])*
        $vis:vis struct $name:ident {$(
            $(#[doc = $doc:literal])*
            $field:ident $(($key_name:literal))?: $type:ty = $default:expr, $key:expr;
        )* $(=> $(
            $(#[doc = $other_doc:literal])*
            $other:ident: $other_type:ty = $other_default:expr;
        )*)?}
    ) => {
        $(#[doc = $table_doc])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $name {
            $($(#[doc = $doc])* $vis $field: $type,)*
            $($($(#[doc = $other_doc])* $vis $other: $other_type,)*)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* $($($other: $other_default,)*)? }
            }
        }

        settings! {
            $(#[doc = $table_doc])*
            for $name { $($(#[doc = $doc])* $field $(($key_name))?: $key;)* }
        }
    };
    (
        $(#[doc = $table_doc:literal])*
        for $name:ident {$(
            $(#[doc = $doc:literal])*
            $field:ident $(($key_name:literal))?: $key:expr;
        )*}
    ) => {
        impl $crate::keys::Described for $name {
            const DOC: &'static [&'static str] = &[$($table_doc),*];

            #[allow(clippy::needless_update, reason = "some structs have fields without a key")]
            fn read_keys(
                t: &$crate::reader::table_reader::TableReader<'_>,
                inherited: &Self,
            ) -> Self {
                Self {
                    $($field: $key.read(
                        t,
                        settings!(@name $field $($key_name)?),
                        &inherited.$field,
                    ),)*
                    ..inherited.clone()
                }
            }

            fn keys() -> Vec<$crate::keys::KeySpec> {
                let default = Self::default();
                vec![
                    $($key.describe(
                        settings!(@name $field $($key_name)?),
                        &[$($doc),*],
                        &default.$field,
                    ),)*
                ]
            }
        }
    };
    (@name $field:ident $key_name:literal) => { $key_name };
    (@name $field:ident) => { stringify!($field) };
}
pub(super) use settings;

// === Types of values ===

/// Type of a key's value: its shape, its reader, and the text of a default.
pub(super) struct Key<T> {
    shape: ValueShape,
    read: Box<ReadKey<T>>,
    default: Box<dyn Fn(&T) -> DefaultValue>,
}

/// Reads a key, whose table inherits a value; `None` if the key is missing or invalid.
type ReadKey<T> = dyn Fn(&TableReader<'_>, &'static str, Option<&T>) -> Option<T>;

impl<T: Clone + 'static> Key<T> {
    /// Makes the key optional: `None` if it is not set.
    pub(super) fn optional(self) -> Key<Option<T>> {
        let Self { shape, read, default } = self;
        Key {
            shape,
            read: Box::new(move |t, name, inherited| {
                read(t, name, inherited.and_then(Option::as_ref)).map(Some)
            }),
            default: Box::new(move |value| value.as_ref().map_or(DefaultValue::None, &default)),
        }
    }

    /// Makes the key one that must be set; the caller reports if it is missing.
    pub(super) fn required(self) -> Self {
        Self { default: Box::new(|_| DefaultValue::Required), ..self }
    }

    /// Sets a description of the default.
    pub(super) fn default_text(self, text: &'static str) -> Self {
        Self { default: Box::new(move |_| DefaultValue::Described(text)), ..self }
    }

    /// Sets how a default is written, for the documents.
    pub(super) fn written(self, written: impl Fn(&T) -> Value + 'static) -> Self {
        Self { default: Box::new(move |value| DefaultValue::Value(written(value))), ..self }
    }

    /// Sets the minimum and maximum number of a list's entries, for the documents; the caller
    /// reports a wrong one.
    pub(super) fn entries(self, min: usize, max: Option<usize>) -> Self {
        let shape = match self.shape {
            ValueShape::List { of, .. } => ValueShape::List { of, count: (min, max) },
            other => other,
        };
        Self { shape, ..self }
    }

    /// Leaves the reading to the owner of the table.
    pub(super) fn by_hand(self) -> Self {
        Self { read: Box::new(|_, _, _| None), ..self }
    }

    /// Reads the key.
    pub(super) fn read(&self, t: &TableReader<'_>, name: &'static str, inherited: &T) -> T {
        (self.read)(t, name, Some(inherited)).unwrap_or_else(|| inherited.clone())
    }

    /// Describes the key.
    pub(super) fn describe(self, name: &'static str, doc: &[&str], default: &T) -> KeySpec {
        KeySpec { default: (self.default)(default), ..KeySpec::new(name, self.shape, doc) }
    }
}

/// Value that the owner of the table reads itself, because it needs more than the table.
pub(super) fn by_hand<T: Clone + 'static>(shape: ValueShape) -> Key<T> {
    custom(shape, |_, _, _| None)
}

/// Value with a reader.
pub(super) fn custom<T: Clone + 'static>(
    shape: ValueShape,
    read: impl Fn(&TableReader<'_>, &'static str, Option<&T>) -> Option<T> + 'static,
) -> Key<T> {
    Key { shape, read: Box::new(read), default: Box::new(|_| DefaultValue::None) }
}

/// Value with a parser.
pub(super) fn parsed<T: Clone + 'static>(
    shape: ValueShape,
    parse: impl Fn(&SpannedValue<'_>) -> Parsed<T> + 'static,
) -> Key<T> {
    custom(shape, move |t, name, _| t.read(name, &parse))
}

pub(super) fn boolean() -> Key<bool> {
    parsed(ValueShape::Boolean, value::boolean).written(|it| (*it).into())
}

pub(super) fn duration() -> Key<Duration> {
    duration_of(value::duration)
}

/// Duration with a parser that accepts fewer.
pub(super) fn duration_of(
    parse: impl Fn(&SpannedValue<'_>) -> Parsed<Duration> + 'static,
) -> Key<Duration> {
    parsed(ValueShape::Duration, parse).written(|it| shape::duration(*it).into())
}

pub(super) fn size() -> Key<usize> {
    size_of(value::size)
}

/// Number of bytes with a parser that accepts fewer.
pub(super) fn size_of(parse: impl Fn(&SpannedValue<'_>) -> Parsed<usize> + 'static) -> Key<usize> {
    parsed(ValueShape::Size, parse).written(|it| shape::size(*it))
}

/// Whole number within bounds, which the type of the field can hold.
pub(super) fn count<T>(bounds: RangeInclusive<usize>) -> Key<T>
where
    T: Copy + TryFrom<usize> + Into<Value> + 'static,
{
    let parse = value::count(bounds.clone());
    custom(ValueShape::Count(bounds), move |t, name, _| {
        t.read(name, &parse).and_then(|count| T::try_from(count).ok())
    })
    .written(|it: &T| (*it).into())
}

/// One of a few words.
pub(super) fn choice<T>(choices: &[(&'static str, T)]) -> Key<T>
where
    T: Clone + PartialEq + 'static,
{
    let choices = choices.to_vec();
    parsed(ValueShape::choice(&choices), value::choice(choices.clone()))
        .written(move |it| shape::word(&choices, it))
}

/// One of the variants of a type, by its name.
pub(super) fn variant<T>() -> Key<T>
where
    T: VariantArray + Into<&'static str> + Copy + PartialEq,
{
    choice(&variants())
}

/// Returns the variants of a type with their names.
pub(super) fn variants<T: VariantArray + Into<&'static str> + Copy>() -> Vec<(&'static str, T)> {
    T::VARIANTS.iter().map(|variant| ((*variant).into(), *variant)).collect()
}

/// String with a parser: the name of its kind, and its pattern.
pub(super) fn string<T: Clone + Display + 'static>(
    kind: &'static str,
    pattern: &'static str,
    parse: impl Fn(&SpannedValue<'_>) -> Parsed<T> + 'static,
) -> Key<T> {
    parsed(ValueShape::Text(kind, pattern), parse).written(|it| it.to_string().into())
}

/// String for the operating system.
pub(super) fn text() -> Key<String> {
    string("string", shape::NOT_EMPTY, value::text)
}

/// URL. Where it is wrong, its user information and query are redacted, wherever they begin.
pub(super) fn url() -> Key<Uri> {
    custom(ValueShape::Text("http or https URL", shape::URL), |t, name, _| {
        t.read(name, |v| value::url(v).inspect_err(|_| t.redact_url(name)))
    })
}

/// List of networks of addresses.
pub(super) fn networks() -> Key<Vec<IpNet>> {
    list(ValueShape::Text("network", shape::NETWORK), value::network)
        .written(|networks| networks.iter().map(ToString::to_string).collect())
}

/// Path of a file or folder; a relative one starts from the folder of the file that contains it.
pub(super) fn path(kind: &'static str) -> Key<PathBuf> {
    custom(ValueShape::Text(kind, shape::NOT_EMPTY), |t, name, _| {
        t.read(name, value::text).map(|path| t.base_folder(name).join(path))
    })
}

/// List, whose entries have a shape and a parser.
pub(super) fn list<T: Clone + 'static>(
    of: ValueShape,
    parse: impl Fn(&SpannedValue<'_>) -> Parsed<T> + 'static,
) -> Key<Vec<T>> {
    custom(ValueShape::list(of), move |t, name, _| t.list(name, &parse))
}

/// List of strings.
pub(super) fn strings(
    of: ValueShape,
    parse: impl Fn(&SpannedValue<'_>) -> Parsed<String> + 'static,
) -> Key<Vec<String>> {
    list(of, parse).written(|list| list.clone().into())
}

/// Table in a table.
pub(super) fn table<T: Described + 'static>() -> Key<T> {
    custom(ValueShape::Table(T::keys()), |t, name, inherited: Option<&T>| {
        let inherited = inherited.cloned().unwrap_or_default();
        Some(t.table(name, |t| T::read_keys(t, &inherited)))
    })
}
