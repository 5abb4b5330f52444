//! The one table of built-ins, and the way from a row to its handler.

use std::time::Duration;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;
use tokio::time::timeout;

use super::atomic::PathLocks;
use super::outcome::{BuiltinFailure, BuiltinOutput};
use super::roots::Roots;
use super::{edit, ops, read, search, shell, write};
use crate::tools::claim_rule::{Access, ClaimRule};

/// A built-in tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the rows of the table describe them")]
pub enum BuiltinKind {
    FileRead,
    FileWrite,
    FileEdit,
    FileOps,
    FileSearch,
    Shell,
}

/// A row of the table: everything about a built-in but its handler.
#[derive(Debug, Clone, Copy)]
pub struct BuiltinDefinition {
    /// Which handler runs it.
    pub kind: BuiltinKind,
    /// Its name on the wire.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// What the model reads.
    pub description: &'static str,
    /// Keys of the configuration without which it does not exist.
    pub needs: &'static [&'static str],
    /// Changes nothing.
    pub read_only: bool,
    /// May destroy what nobody can bring back.
    pub destructive: bool,
    /// Once more has no further effect.
    pub idempotent: bool,
    /// A person is always asked.
    pub confirm: bool,
    /// What a call touches.
    pub claim: fn() -> ClaimRule,
    /// The grant that a caller must hold.
    pub permission: Option<&'static str>,
    /// The schema of its arguments.
    pub schema: fn() -> Value,
}

/// All built-ins. Names, descriptions and requirements are written here and nowhere else.
pub static BUILTIN_TOOL_DEFINITIONS: &[BuiltinDefinition] = &[
    BuiltinDefinition {
        kind: BuiltinKind::FileRead,
        name: "file_read",
        title: "Read a file",
        description: "Reads a text file or a range of its lines, exactly as it is, after one line of facts. A long file comes in \
                      parts: read on with the start_line that is given.",
        needs: &[ROOTS],
        read_only: true,
        destructive: false,
        idempotent: true,
        confirm: false,
        claim: || ClaimRule::paths(Access::Shared, &["path"]),
        permission: None,
        schema: schema_of::<read::Arguments>,
    },
    BuiltinDefinition {
        kind: BuiltinKind::FileWrite,
        name: "file_write",
        title: "Write a file",
        description: "Writes a whole text file in one step. To change a part of one use file_edit.",
        needs: &[ROOTS],
        read_only: false,
        destructive: false,
        idempotent: true,
        confirm: false,
        claim: || ClaimRule::paths(Access::Exclusive, &["path"]),
        permission: None,
        schema: schema_of::<write::Arguments>,
    },
    BuiltinDefinition {
        kind: BuiltinKind::FileEdit,
        name: "file_edit",
        title: "Edit a file",
        description: "Replaces exact pieces of a text file; all edits of a call are made or none. Returns a short diff.",
        needs: &[ROOTS],
        read_only: false,
        destructive: false,
        idempotent: false,
        confirm: false,
        claim: || ClaimRule::paths(Access::Exclusive, &["path"]),
        permission: None,
        schema: schema_of::<edit::Arguments>,
    },
    BuiltinDefinition {
        kind: BuiltinKind::FileOps,
        name: "file_ops",
        title: "Manage files and folders",
        description: "Lists, describes (stat), makes, copies, moves and deletes files and folders. Nothing is overwritten and no full \
                      folder is deleted unless asked for.",
        needs: &[ROOTS],
        read_only: false,
        destructive: false,
        idempotent: false,
        confirm: false,
        claim: ops::claim,
        permission: None,
        schema: schema_of::<ops::Arguments>,
    },
    BuiltinDefinition {
        kind: BuiltinKind::FileSearch,
        name: "file_search",
        title: "Search in files",
        description: "Searches the lines of text files and returns path, line number and line of each match. Skips binary files and \
                      what .gitignore leaves out.",
        needs: &[ROOTS],
        read_only: true,
        destructive: false,
        idempotent: true,
        confirm: false,
        claim: search::claim,
        permission: None,
        schema: schema_of::<search::Arguments>,
    },
    BuiltinDefinition {
        kind: BuiltinKind::Shell,
        name: "shell",
        title: "Run a shell command",
        description: "Runs a command line in a shell; returns exit code and output. A person is asked first: prefer the file tools.",
        needs: &[ROOTS],
        read_only: false,
        destructive: true,
        idempotent: false,
        confirm: true,
        claim: || ClaimRule::Exclusive,
        permission: None,
        schema: schema_of::<shell::Arguments>,
    },
];

/// The folders that built-ins work in.
const ROOTS: &str = "builtins.roots";

/// What the handlers share.
#[derive(Debug, Clone, Default)]
pub struct BuiltinEnv {
    /// Where they may work.
    pub roots: Roots,
    /// One change at a time at each path; must outlive a change of the configuration.
    pub locks: PathLocks,
}

/// Runs a built-in. Dropping the future stops it and leaves nothing half done.
pub async fn run(
    kind: BuiltinKind,
    env: &BuiltinEnv,
    input: Value,
    limit: Duration,
) -> Result<BuiltinOutput, BuiltinFailure> {
    let BuiltinEnv { roots, locks } = env;
    let call = async {
        match kind {
            BuiltinKind::FileRead => read::run(roots, input).await,
            BuiltinKind::FileWrite => write::run(roots, locks, input).await,
            BuiltinKind::FileEdit => edit::run(roots, locks, input).await,
            BuiltinKind::FileOps => ops::run(roots, locks, input).await,
            BuiltinKind::FileSearch => search::run(roots, input, limit).await,
            BuiltinKind::Shell => shell::run(roots, input, limit).await,
        }
    };
    timeout(limit, call).await.unwrap_or_else(|_| {
        Err(BuiltinFailure::Timeout {
            message: format!(
                "it did not finish within {} ms; look at what is there before you try again",
                limit.as_millis()
            ),
        })
    })
}

/// The schema of arguments in its plainest form: a model reads it with every request, and strict clients refuse the rest.
fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.remove("description");
    }
    plain(&mut schema);
    schema
}

/// Takes out titles and number formats; an argument that may be absent is not also `null`.
fn plain(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    for noise in ["title", "format"] {
        if object.get(noise).is_some_and(Value::is_string) {
            object.remove(noise);
        }
    }
    // What is absent is `null`, `false` or 0 anyway, and what is counted is never negative.
    let is_nothing =
        |value: &Value| matches!(value, Value::Null | Value::Bool(false)) || value == &Value::from(0);
    for key in ["default", "minimum"] {
        if object.get(key).is_some_and(is_nothing) {
            object.remove(key);
        }
    }
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|word| word != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            object.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(plain);
    }
    if let Some(items) = object.get_mut("items") {
        plain(items);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use expect_test::expect;
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;
    use crate::tools::claim_rule::Touched;

    fn check_object(schema: &Value, at: &str) {
        assert_eq!(schema["type"], "object", "{at}");
        assert_eq!(schema["additionalProperties"], false, "{at}");
        for (name, property) in schema["properties"].as_object().unwrap() {
            let at = format!("{at}.{name}");
            assert!(property["description"].as_str().is_some_and(|text| !text.is_empty()), "{at}");
            assert!(property["type"].is_string(), "{at}");
            if property["type"] == "array" {
                check_object(&property["items"], &at);
            }
        }
    }

    #[test]
    fn every_row_is_whole_and_every_schema_is_plain() {
        let names: HashSet<_> = BUILTIN_TOOL_DEFINITIONS.iter().map(|row| row.name).collect();
        let kinds: HashSet<_> = BUILTIN_TOOL_DEFINITIONS.iter().map(|row| row.kind).collect();
        assert_eq!((names.len(), kinds.len()), (6, 6));
        for row in BUILTIN_TOOL_DEFINITIONS {
            assert!(!row.title.is_empty() && !row.description.is_empty() && !row.needs.is_empty());
            assert!(!row.description.contains("  "), "{}", row.description);
            let schema = (row.schema)();
            check_object(&schema, row.name);
            let text = schema.to_string();
            for noise in ["$schema", "$defs", "$ref", "\"null\"", "\"format\"", "\"title\"", "anyOf", "oneOf"]
            {
                assert!(!text.contains(noise), "{noise} in {text}");
            }
        }
    }

    #[test]
    fn the_schema_of_operations_is_pinned() {
        let schema = (BUILTIN_TOOL_DEFINITIONS[3].schema)();
        assert_eq!(schema["required"], json!(["operation", "path"]));
        expect![[r#"{"type":"string","enum":["list","stat","mkdir","copy","move","delete"],"description":"`copy` and `move` take a `destination`; `mkdir` makes missing folders on the way too."}"#]]
            .assert_eq(&schema["properties"]["operation"].to_string());
    }

    #[test]
    fn s50_built_ins_claim_what_their_arguments_name() {
        let check = |name: &str, arguments: Value, expected: Touched| {
            let row = BUILTIN_TOOL_DEFINITIONS.iter().find(|row| row.name == name).unwrap();
            assert_eq!((row.claim)().touched(&arguments), expected, "{name} {arguments}");
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let reads = |paths: &[&str]| Touched::Paths(Access::Shared, names(paths));
        let changes = |paths: &[&str]| Touched::Paths(Access::Exclusive, names(paths));
        let everything = Touched::Everything(Access::Exclusive);
        check("file_read", json!({ "path": "a" }), reads(&["a"]));
        check("file_write", json!({ "path": "a", "content": "" }), changes(&["a"]));
        check("file_edit", json!({ "path": "a" }), changes(&["a"]));
        check("file_search", json!({ "pattern": "x", "path": "src" }), reads(&["src"]));
        check("file_search", json!({ "pattern": "x" }), reads(&["."]));
        check("shell", json!({ "command": "true" }), everything.clone());
        for operation in ["list", "stat"] {
            check("file_ops", json!({ "operation": operation, "path": "a" }), reads(&["a"]));
        }
        for operation in ["mkdir", "delete"] {
            check("file_ops", json!({ "operation": operation, "path": "a" }), changes(&["a"]));
        }
        for operation in ["copy", "move"] {
            let arguments = json!({ "operation": operation, "path": "a", "destination": "b" });
            check("file_ops", arguments, changes(&["a", "b"]));
        }
        check("file_ops", json!({ "operation": "zap", "path": "a" }), everything.clone());
        check("file_ops", json!({ "path": "a" }), everything.clone());
        check("file_ops", json!({ "operation": "delete" }), everything);
    }

    #[tokio::test]
    async fn every_kind_reaches_its_handler() {
        let world = TempDir::new().unwrap();
        let roots = Roots::new(&[".".into()], world.path(), None);
        let env = BuiltinEnv { roots, locks: PathLocks::default() };
        let limit = Duration::from_secs(30);
        let calls = [
            (BuiltinKind::FileWrite, json!({ "path": "a.txt", "content": "one\n" })),
            (BuiltinKind::FileEdit, json!({ "path": "a.txt", "old_text": "one", "new_text": "two" })),
            (BuiltinKind::FileSearch, json!({ "pattern": "two" })),
            (BuiltinKind::FileOps, json!({ "operation": "stat", "path": "a.txt" })),
            (BuiltinKind::FileRead, json!({ "path": "a.txt" })),
            (BuiltinKind::Shell, json!({ "command": "echo two" })),
        ];
        for (kind, input) in calls {
            let output = run(kind, &env, input, limit).await.unwrap();
            assert!(!output.text.is_empty() && output.structured.is_object(), "{kind:?}");
        }
        for row in BUILTIN_TOOL_DEFINITIONS {
            let failure = run(row.kind, &env, json!({ "surely_not": 1 }), limit).await.unwrap_err();
            assert!(matches!(failure, BuiltinFailure::Validation { .. }), "{failure:?}");
        }
    }

    #[tokio::test]
    async fn without_folders_nothing_works() {
        let env = BuiltinEnv::default();
        let input = json!({ "path": "/etc/hostname" });
        assert!(run(BuiltinKind::FileRead, &env, input, Duration::from_secs(30)).await.is_err());
        assert!(
            run(BuiltinKind::Shell, &env, json!({ "command": "true" }), Duration::from_secs(30))
                .await
                .is_err()
        );
    }
}
