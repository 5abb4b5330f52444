//! What a built-in gives back, and how it says what went wrong.

use std::io;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

/// A result for a model: the same facts as text and as a JSON object.
#[derive(Debug, Clone, PartialEq)]
pub struct BuiltinOutput {
    /// Never empty.
    pub text: String,
    /// Always an object.
    pub structured: Value,
}

/// Why a call gave no result, in a sentence a model can act on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuiltinFailure {
    /// The arguments make no sense; nothing was done.
    Validation {
        /// JSON pointer into the arguments; empty for the arguments as a whole.
        path: String,
        /// What was expected.
        message: String,
    },
    /// It was tried and did not work.
    Execution {
        /// What went wrong, and the way out.
        message: String,
    },
    /// It did not finish in time.
    Timeout {
        /// What may have happened, and the way out.
        message: String,
    },
}

impl BuiltinFailure {
    /// Arguments that make no sense.
    pub fn invalid(path: &str, message: impl Into<String>) -> BuiltinFailure {
        BuiltinFailure::Validation { path: path.to_owned(), message: message.into() }
    }

    /// Something that did not work.
    pub fn failed(message: impl Into<String>) -> BuiltinFailure {
        BuiltinFailure::Execution { message: message.into() }
    }

    /// What the operating system said about `shown`, without the paths that it puts into its messages.
    pub fn io(doing: &str, shown: &str, error: &io::Error) -> BuiltinFailure {
        let cause = match error.kind() {
            io::ErrorKind::NotFound => "it does not exist".to_owned(),
            io::ErrorKind::PermissionDenied => {
                "the operating system does not permit it; check its permissions".to_owned()
            }
            io::ErrorKind::AlreadyExists => "it exists already".to_owned(),
            io::ErrorKind::NotADirectory => "a part of its path is a file, not a folder".to_owned(),
            io::ErrorKind::IsADirectory => "it is a folder".to_owned(),
            io::ErrorKind::StorageFull => "the disk is full".to_owned(),
            io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only".to_owned(),
            io::ErrorKind::InvalidFilename => "the name is too long or not allowed here".to_owned(),
            kind => kind.to_string(),
        };
        BuiltinFailure::failed(format!("cannot {doing} `{shown}`: {cause}"))
    }
}

/// Decodes arguments; what does not fit is named by its place.
pub fn decode<T: DeserializeOwned>(input: Value) -> Result<T, BuiltinFailure> {
    serde_path_to_error::deserialize(input).map_err(|error| BuiltinFailure::Validation {
        path: pointer(error.path()),
        message: error.inner().to_string(),
    })
}

fn pointer(path: &Path) -> String {
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } => {
                pointer.push_str(&format!("/{}", key.replace('~', "~0").replace('/', "~1")))
            }
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    pointer
}

/// `1 line`, `2 lines`.
pub fn count(number: u64, singular: &str) -> String {
    match number {
        1 => format!("1 {singular}"),
        _ if singular.ends_with(['h', 's']) => format!("{number} {singular}es"),
        _ if singular.ends_with('y') => format!("{number} {}ies", singular.trim_end_matches('y')),
        _ => format!("{number} {singular}s"),
    }
}

/// At most `letters` characters of one line, with an ellipsis where more was left out.
pub fn shorten(line: &str, letters: usize) -> String {
    match line.char_indices().nth(letters) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        #[expect(dead_code, reason = "only decoded")]
        items: Vec<Item>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Item {
        #[expect(dead_code, reason = "only decoded")]
        size: u32,
    }

    #[test]
    fn arguments_that_do_not_fit_are_named_by_their_place() {
        let check = |input: Value, path: &str, part: &str| match decode::<Sample>(input) {
            Err(BuiltinFailure::Validation { path: found, message }) => {
                assert_eq!(found, path);
                assert!(message.contains(part), "{message}");
            }
            other => panic!("{other:?}"),
        };
        check(json!({ "items": [{ "size": 1 }, { "size": "x" }] }), "/items/1/size", "invalid type");
        check(json!({ "items": [], "itmes": 1 }), "/itmes", "unknown field `itmes`");
        check(json!({}), "", "missing field `items`");
        check(json!([1]), "/0", "invalid type");
    }

    #[test]
    fn counts_and_cuts() {
        assert_eq!(
            [count(1, "match"), count(2, "match"), count(0, "entry")],
            ["1 match", "2 matches", "0 entries"]
        );
        assert_eq!([shorten("añb", 2), shorten("añ", 2)], ["añ…", "añ"]);
    }
}
