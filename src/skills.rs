//! Skills: folders with a `SKILL.md`, each a tool that returns its instructions and the list of its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::json;

use crate::catalog::names::legal;
use crate::catalog::registry::RegisteredTool;
use crate::catalog::sanitize::clean;
use crate::tools::error::ToolError;
use crate::tools::json::RawJson;
use crate::tools::service::{
    Input, Source, ToolDefinition, ToolHandler, ToolMetadata, ToolOutput, ToolResult, Turn,
};

/// Most files that are listed.
const MOST_FILES: usize = 512;
/// Largest `SKILL.md` that is read.
const MOST_BYTES: u64 = 1 << 20;

struct Skill {
    folder: PathBuf,
    tool: String,
}

/// The tools of all skills below these folders. A skill that cannot be read is reported and left out.
pub fn tools(paths: &[String]) -> Vec<RegisteredTool> {
    let mut tools: Vec<RegisteredTool> = Vec::new();
    for path in paths {
        for folder in skill_folders(Path::new(path)) {
            match tool(&folder) {
                Ok(tool) if tools.iter().any(|t| t.definition().name == tool.definition().name) => {
                    tracing::warn!(name = %tool.definition().name, "a second skill of this name was left out");
                }
                Ok(tool) => tools.push(tool),
                Err(why) => {
                    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    tracing::warn!(skill = %name, "left out: {why}");
                }
            }
        }
    }
    tools
}

/// The folder itself, if it is a skill, or those directly below it that are.
fn skill_folders(path: &Path) -> Vec<PathBuf> {
    if path.join("SKILL.md").is_file() {
        return vec![path.to_owned()];
    }
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(%error, "a folder of `[skills] paths` cannot be read");
            return Vec::new();
        }
    };
    let mut folders: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|folder| folder.join("SKILL.md").is_file())
        .collect();
    folders.sort();
    folders
}

fn tool(folder: &Path) -> Result<RegisteredTool, String> {
    let text = read_skill(folder)?;
    let front = front_matter(&text);
    let folder_name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = front.name.unwrap_or(folder_name);
    let description = front.description.ok_or("`SKILL.md` has no description in its front matter")?;
    let mut wire = format!("skill_{}", legal(&name).name);
    wire.truncate(crate::catalog::snapshot::NAME_LIMIT);
    let metadata = ToolMetadata {
        read_only: true,
        idempotent: true,
        parallel_safe: Some(true),
        ..ToolMetadata::default()
    };
    let schema =
        RawJson::from_value(&json!({ "type": "object", "properties": {}, "additionalProperties": false }));
    let description = clean(&format!("Skill: {description}")).into_owned();
    let mut definition =
        ToolDefinition::new(wire.trim_end_matches('_'), &description, schema, Source::Skill, metadata)
            .with_title(&clean(&name));
    definition.original = name.into();
    let handler = Skill { folder: folder.to_owned(), tool: definition.name.to_string() };
    Ok(RegisteredTool::new(definition, Arc::new(handler)))
}

fn read_skill(folder: &Path) -> Result<String, String> {
    let file = folder.join("SKILL.md");
    let length = fs::metadata(&file).map_err(|error| format!("`SKILL.md` cannot be read: {error}"))?.len();
    if length > MOST_BYTES {
        return Err(format!("`SKILL.md` is larger than {MOST_BYTES} bytes"));
    }
    fs::read_to_string(&file).map_err(|error| format!("`SKILL.md` cannot be read: {error}"))
}

#[derive(Default)]
struct FrontMatter {
    name: Option<String>,
    description: Option<String>,
}

/// `name` and `description` between two lines of `---`.
fn front_matter(text: &str) -> FrontMatter {
    let mut front = FrontMatter::default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines();
    if lines.next().map(str::trim_end) != Some("---") {
        return front;
    }
    for line in lines.take_while(|line| line.trim_end() != "---") {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim().trim_matches(['"', '\'']).trim();
        let value = (!value.is_empty()).then(|| value.to_owned());
        match key.trim_end() {
            "name" => front.name = value,
            "description" => front.description = value,
            _ => {}
        }
    }
    front
}

/// Names of the files of a skill, relative to its folder, sorted; links are not followed.
fn files(folder: &Path) -> Vec<String> {
    let walk = ignore::WalkBuilder::new(folder).standard_filters(false).follow_links(false).build();
    let mut files: Vec<String> = walk
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_some_and(|kind| kind.is_file()))
        .filter_map(|entry| Some(entry.path().strip_prefix(folder).ok()?.to_string_lossy().into_owned()))
        .filter(|name| name != "SKILL.md")
        .take(MOST_FILES)
        .collect();
    files.sort();
    files
}

impl ToolHandler for Skill {
    fn call<'a>(&'a self, _: Input, _: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let folder = self.folder.clone();
            let read = tokio::task::spawn_blocking(move || Ok((read_skill(&folder)?, files(&folder)))).await;
            match read {
                Ok(Ok((instructions, files))) => {
                    let mut text = instructions.clone();
                    if !files.is_empty() {
                        text.push_str("\n\nFiles of this skill:\n");
                        text.push_str(&files.join("\n"));
                    }
                    let facts = json!({ "instructions": instructions, "files": files });
                    Ok(ToolResult::Completed(ToolOutput::structured(&text, &facts)))
                }
                Ok(Err(why)) => Ok(ToolResult::ToolError(why)),
                Err(_) => Err(ToolError::Cancelled { tool: self.tool.clone() }),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn front_matter_is_read_and_odd_ones_are_not_fatal() {
        let check = |text: &str, name: Option<&str>, description: Option<&str>| {
            let front = front_matter(text);
            assert_eq!((front.name.as_deref(), front.description.as_deref()), (name, description), "{text}");
        };
        check(
            "---\nname: pdf\ndescription: \"Reads PDF: files\"\n---\nbody",
            Some("pdf"),
            Some("Reads PDF: files"),
        );
        check("\u{feff}---\r\nname: x\r\ndescription: d\r\n---\r\n", Some("x"), Some("d"));
        check("# no front matter", None, None);
        check("---\nname:\n---\n", None, None);
    }

    #[tokio::test]
    async fn a_skill_returns_its_instructions_and_files() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("pdf tools");
        fs::create_dir_all(folder.join("scripts")).unwrap();
        fs::write(folder.join("SKILL.md"), "---\nname: PDF tools\ndescription: Reads PDFs\n---\nDo this.")
            .unwrap();
        fs::write(folder.join("scripts/run.py"), "").unwrap();
        fs::create_dir_all(root.path().join("broken")).unwrap();
        fs::write(root.path().join("broken/SKILL.md"), "nothing").unwrap();
        let tools = tools(&[root.path().to_string_lossy().into_owned()]);
        assert_eq!(tools.len(), 1);
        assert_eq!(&*tools[0].definition().name, "skill_PDF_tools");
        let turn = Turn::detached();
        let input = Input::from(json!({}));
        let result = tools[0].execute(input, &Default::default(), &turn).await.unwrap();
        let ToolResult::Completed(output) = result else { panic!("{result:?}") };
        assert!(output.plain_text().contains("Do this.") && output.plain_text().contains("run.py"));
    }
}
