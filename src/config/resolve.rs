//! Turns tables as written into tables that can be used: references expanded, paths absolute, secrets collected.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::expand::{Expander, Unresolved, absolute};
use super::secrets;
use super::tables::McpServer;
use crate::commands::CommandConfig;
use crate::hooks::HookConfig;

/// Resolves the values of one file.
pub(crate) struct Resolver<'a> {
    pub(crate) expander: Expander<'a>,
    pub(crate) secrets: Vec<String>,
}

/// A place and what is wrong there, for a person.
type Reason = String;

/// A reference that cannot be resolved, with its place in the table.
#[derive(Debug)]
pub(crate) struct Misfit {
    place: String,
    pub(crate) cause: Unresolved,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.place, self.cause)
    }
}

impl From<Misfit> for Reason {
    fn from(misfit: Misfit) -> Reason {
        misfit.to_string()
    }
}

impl Resolver<'_> {
    /// The server ready to start, or why it cannot.
    pub(crate) fn server(&mut self, written: &McpServer) -> Result<McpServer, Reason> {
        let mut server = written.clone();
        for (at, argument) in server.args.iter_mut().enumerate() {
            self.value(&format!("args[{at}]"), argument)?;
        }
        for (name, value) in &mut server.env {
            self.secret(&format!("env.{name}"), value)?;
        }
        for (name, value) in &mut server.http_headers {
            self.secret(&format!("http_headers.{name}"), value)?;
        }
        if let Some(url) = &mut server.url {
            self.value("url", url)?;
        }
        if let Some(cwd) = &mut server.cwd {
            *cwd = self.expander.path(cwd).map_err(at("cwd"))?;
        }
        if let Some(command) = &mut server.command {
            let start = server.cwd.as_deref().map_or(self.expander.folder, Path::new);
            let program = self.expander.value(command).map_err(at("command"))?.text;
            *command = self.absolute_program(start, &program).map_err(at("command"))?;
        }
        if let Some(name) = &server.bearer_token_env_var {
            let token = self.expander.environment.get(name).filter(|token| !token.is_empty());
            let token = token.ok_or_else(|| {
                format!("`bearer_token_env_var`: the environment variable `{name}` is not set; set it for toolcrib")
            })?;
            secrets::collect(token, self.expander.environment, &mut self.secrets);
        }
        let is_empty = |text: &Option<String>| text.as_ref().is_some_and(String::is_empty);
        if is_empty(&server.command) || is_empty(&server.url) {
            return Err("`command` or `url` is empty once its references are replaced".to_owned());
        }
        Ok(server)
    }

    /// The command ready to run, or why it cannot.
    pub(crate) fn command(&mut self, written: &CommandConfig) -> Result<CommandConfig, Reason> {
        let mut command = written.clone();
        self.program(&mut command.run, &mut command.env, &mut command.cwd)?;
        Ok(command)
    }

    /// The hook ready to be asked, or why it cannot.
    pub(crate) fn hook(&mut self, written: &HookConfig) -> Result<HookConfig, Misfit> {
        let mut hook = written.clone();
        self.program(&mut hook.run, &mut hook.env, &mut hook.cwd)?;
        Ok(hook)
    }

    fn program(
        &mut self,
        run: &mut [String],
        env: &mut BTreeMap<String, String>,
        cwd: &mut Option<String>,
    ) -> Result<(), Misfit> {
        for (at, word) in run.iter_mut().enumerate() {
            self.value(&format!("run[{at}]"), word)?;
        }
        for (name, value) in env {
            self.secret(&format!("env.{name}"), value)?;
        }
        if let Some(cwd) = cwd {
            *cwd = self.expander.path(cwd).map_err(at("cwd"))?;
        }
        // A command's parameter in the program's place is known only when it is called.
        if let Some(program) = run.first_mut().filter(|program| !program.contains("{{")) {
            let start = cwd.as_deref().map_or(self.expander.folder, Path::new);
            *program = self.absolute_program(start, program).map_err(at("run[0]"))?;
        }
        Ok(())
    }

    /// The folders that can be named; the others are left out, each with a warning.
    pub(crate) fn folders(
        &self,
        key: &str,
        start: &Path,
        written: &[String],
        warnings: &mut Vec<String>,
    ) -> Vec<String> {
        let folder = |text: &String| match self.expander.path_in(start, text) {
            Ok(folder) => Some(folder),
            Err(error) => {
                warnings.push(format!("an entry of `{key}` is left out: {error}"));
                None
            }
        };
        written.iter().filter_map(folder).collect()
    }

    /// A value of which only what was inserted is a secret.
    fn value(&mut self, place: &str, text: &mut String) -> Result<(), Misfit> {
        let expanded = self.expander.value(text).map_err(at(place))?;
        for inserted in &expanded.inserted {
            secrets::collect(inserted, self.expander.environment, &mut self.secrets);
        }
        *text = expanded.text;
        Ok(())
    }

    /// A value that is a secret as a whole.
    fn secret(&mut self, place: &str, text: &mut String) -> Result<(), Misfit> {
        self.value(place, text)?;
        secrets::collect(text, self.expander.environment, &mut self.secrets);
        Ok(())
    }

    /// A bare name is looked up in PATH; systems disagree about where `./name` starts, so it is made absolute.
    fn absolute_program(&self, start: &Path, program: &str) -> Result<String, Unresolved> {
        if !program.contains(std::path::is_separator) || Path::new(program).is_absolute() {
            return Ok(program.to_owned());
        }
        absolute(start, self.expander.environment.home().as_deref(), program).ok_or(Unresolved::Home)
    }
}

fn at(place: &str) -> impl Fn(Unresolved) -> Misfit {
    move |cause| Misfit { place: place.to_owned(), cause }
}
