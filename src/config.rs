//! Finds, reads, checks and merges the configuration: `tools.toml` and the JSON files of clients.

mod check;
mod client_json;
pub mod diagnose;
pub mod environment;
mod expand;
mod locate;
mod resolve;
mod secrets;
pub mod tables;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use self::diagnose::{ConfigError, Notation, Source};
use self::environment::Environment;
use self::expand::Expander;
use self::locate::Found;
use self::resolve::Resolver;
use self::tables::{Builtins, Config};

/// What the command line and the surroundings say about configuration.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// Each `--mcp-config`.
    pub mcp_config: Vec<PathBuf>,
    /// The environment variables.
    pub env: Environment,
    /// The working directory, absolute.
    pub directory: PathBuf,
}

/// A configuration ready for use.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Loaded {
    /// All tables, references replaced and paths absolute. Disabled servers and commands, and unusable hooks, stay as
    /// they were written.
    pub config: Config,
    /// What a person should know.
    pub warnings: Vec<String>,
    /// What only somebody who looks for a mistake should know.
    pub notes: Vec<String>,
    /// Server → why it cannot be used. A server that makes no sense at all is only here, not in `config`.
    pub disabled: BTreeMap<String, String>,
    /// Command tool → why it cannot be used.
    pub disabled_commands: BTreeMap<String, String>,
    /// Values to mask in logs, the longest first.
    pub secrets: Vec<String>,
    /// The files that were read.
    pub sources: Vec<PathBuf>,
}

/// Loads the configuration that the options lead to; no file at all means the defaults.
pub fn load(options: &Options) -> Result<Loaded, ConfigError> {
    let found = locate::find(options);
    let mut loaded = Loaded::default();
    loaded.warnings.extend(locate::warning_about_stray(options, &found));
    match &found {
        Found::Named(path) | Found::Users(path) => read_toml(&mut loaded, path, options)?,
        Found::Nothing => {
            let roots = Builtins::default().roots;
            let resolver = Resolver { expander: expander(options, &options.directory), secrets: Vec::new() };
            loaded.config.builtins.roots =
                resolver.folders("builtins.roots", &options.directory, &roots, &mut loaded.warnings);
        }
    }
    for path in &options.mcp_config {
        read_client_file(&mut loaded, &locate::given_path(path, options), options)?;
    }
    loaded.secrets = secrets::in_order(loaded.secrets);
    Ok(loaded)
}

fn expander<'a>(options: &'a Options, folder: &'a Path) -> Expander<'a> {
    Expander { environment: &options.env, folder, workspace: None }
}

fn read_toml(loaded: &mut Loaded, path: &Path, options: &Options) -> Result<(), ConfigError> {
    let source = Source::read(path, Notation::Toml)?;
    let (mut config, document) = diagnose::parse_toml(&source)?;
    check::check(&source, &document, &config)?;
    loaded.sources.push(path.to_owned());

    let folder = path.parent().unwrap_or(&options.directory);
    let mut resolver = Resolver { expander: expander(options, folder), secrets: Vec::new() };
    for (name, server) in config.mcp_servers.iter_mut().filter(|(_, server)| server.enabled) {
        match resolver.server(server) {
            Ok(ready) => *server = ready,
            Err(reason) => {
                loaded.disabled.insert(name.clone(), reason);
            }
        }
    }
    for (name, command) in &mut config.commands {
        match resolver.command(command) {
            Ok(ready) => *command = ready,
            Err(reason) => {
                loaded.disabled_commands.insert(name.clone(), reason);
            }
        }
    }
    for (name, hook) in &mut config.hooks {
        match resolver.hook(hook) {
            Ok(ready) => *hook = ready,
            // Left out it would let through what it is there to stop.
            Err(misfit) => {
                loaded.warnings.push(format!("hook `{name}` refuses every call that it concerns: {misfit}"));
                hook.unusable = Some(misfit.cause.for_model());
            }
        }
    }
    // The default is the folder we were started in; a root that somebody wrote belongs to their file.
    let has_roots = document
        .get("builtins")
        .and_then(|value| value.get_ref().as_table())
        .is_some_and(|builtins| builtins.contains_key("roots"));
    let start = if has_roots { folder } else { &options.directory };
    config.builtins.roots =
        resolver.folders("builtins.roots", start, &config.builtins.roots, &mut loaded.warnings);
    config.skills.paths =
        resolver.folders("skills.paths", folder, &config.skills.paths, &mut loaded.warnings);
    loaded.secrets.append(&mut resolver.secrets);
    loaded.config = config;
    Ok(())
}

fn read_client_file(loaded: &mut Loaded, path: &Path, options: &Options) -> Result<(), ConfigError> {
    let source = Source::read(path, Notation::Json)?;
    let file = client_json::parse(&source)?;
    loaded.sources.push(path.to_owned());
    loaded.warnings.extend(file.warnings);
    loaded.notes.extend(file.notes);

    let folder = path.parent().unwrap_or(&options.directory);
    let workspace = client_json::workspace_of(folder);
    let expander = Expander { workspace: Some(&workspace), ..expander(options, folder) };
    let mut resolver = Resolver { expander, secrets: Vec::new() };
    for (name, entry) in file.servers {
        let mut known = loaded.config.mcp_servers.keys().chain(loaded.disabled.keys());
        if let Some(known) = known.find(|known| known.to_lowercase() == name.to_lowercase()) {
            loaded.warnings.push(format!(
                "server `{name}` in `{}` is ignored: `{known}` of a file read before comes first",
                path.display()
            ));
            continue;
        }
        let written = match entry {
            Ok(server) => server,
            Err(reason) => {
                loaded.disabled.insert(name, reason);
                continue;
            }
        };
        let resolved = if written.enabled { resolver.server(&written) } else { Ok(written.clone()) };
        let server = resolved.unwrap_or_else(|reason| {
            loaded.disabled.insert(name.clone(), reason);
            written
        });
        loaded.config.mcp_servers.insert(name, server);
    }
    loaded.secrets.append(&mut resolver.secrets);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;
    use crate::config::tables::McpServer;
    use crate::tools::scoped::policy::Action;

    /// A home folder, a working directory and files in them.
    struct Place {
        folder: TempDir,
    }

    impl Place {
        fn new(files: &[(&str, &str)]) -> Self {
            let place = Self { folder: tempfile::tempdir().unwrap() };
            for folder in ["home", "work"] {
                fs::create_dir_all(place.folder.path().join(folder)).unwrap();
            }
            for (name, text) in files {
                let path = place.path(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            place
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn text(&self, name: &str) -> String {
            self.path(name).into_os_string().into_string().unwrap()
        }

        /// Started in `work`, with these variables beside HOME.
        fn options(&self, variables: &[(&str, &str)]) -> Options {
            let home = ("HOME".to_owned(), self.text("home"));
            let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            Options {
                env: variables.chain([home]).collect(),
                directory: self.path("work"),
                ..Options::default()
            }
        }

        fn load(&self, config: &str, clients: &[&str], variables: &[(&str, &str)]) -> Loaded {
            let options = Options {
                config: (!config.is_empty()).then(|| self.path(config)),
                mcp_config: clients.iter().map(|name| self.path(name)).collect(),
                ..self.options(variables)
            };
            load(&options).unwrap()
        }
    }

    fn server<'a>(loaded: &'a Loaded, name: &str) -> &'a McpServer {
        assert_eq!(loaded.disabled.get(name), None);
        &loaded.config.mcp_servers[name]
    }

    const MARKED: &str = "[tools]\nauto_tokens = ";

    #[test]
    fn c4_the_first_place_that_names_a_file_wins() {
        let flag = format!("{MARKED}1");
        let variable = format!("{MARKED}2");
        let users = format!("{MARKED}3");
        let place = Place::new(&[
            ("flag.toml", &flag),
            ("work/variable.toml", &variable),
            ("home/.config/toolcrib/tools.toml", &users),
            ("work/tools.toml", "[tools]\nauto_tokens = 4"),
        ]);
        let tokens = |options: &Options| {
            let loaded = load(options).unwrap();
            (loaded.config.tools.auto_tokens, loaded.warnings.len(), loaded.sources)
        };
        let named = place.options(&[("TOOLCRIB_CONFIG", "variable.toml")]);
        let flagged = Options { config: Some("../flag.toml".into()), ..named.clone() };
        assert_eq!(tokens(&flagged), (1, 0, vec![place.path("work/../flag.toml")]));
        assert_eq!(tokens(&named), (2, 0, vec![place.path("work/variable.toml")]));
        let users = vec![place.path("home/.config/toolcrib/tools.toml")];
        assert_eq!(tokens(&place.options(&[])), (3, 1, users.clone()));
        assert_eq!(tokens(&place.options(&[("TOOLCRIB_CONFIG", "")])), (3, 1, users));
        let home = Options { config: Some("~/.config/toolcrib/tools.toml".into()), ..named };
        assert_eq!(tokens(&home).0, 3);
    }

    #[test]
    fn c4_no_file_means_the_defaults() {
        let place = Place::new(&[]);
        let loaded = place.load("", &[], &[]);
        let mut expected = Config::default();
        expected.builtins.roots = vec![place.text("work")];
        assert_eq!(loaded.config, expected);
        assert_eq!((loaded.warnings.len(), loaded.sources.len(), loaded.disabled.len()), (0, 0, 0));
    }

    #[test]
    fn cfg_12_an_empty_file_means_the_defaults() {
        let place = Place::new(&[("empty.toml", "")]);
        assert_eq!(place.load("empty.toml", &[], &[]).config, place.load("", &[], &[]).config);
    }

    #[test]
    fn c4_a_file_in_the_working_directory_is_never_used_silently() {
        let place = Place::new(&[("work/tools.toml", "[commands.x]\nrun = ['rm']\n")]);
        let loaded = place.load("", &[], &[]);
        assert_eq!(loaded.config.commands.len(), 0);
        assert_eq!(
            loaded.warnings,
            [
                "`tools.toml` in the working directory is not used, because a configuration can start programs; \
              to use it, start with `--config tools.toml`"
            ]
        );
        assert_eq!(place.load("work/tools.toml", &[], &[]).warnings, [""; 0]);
    }

    #[test]
    fn c4_a_named_file_has_to_be_there() {
        let place = Place::new(&[]);
        let error = |options: Options| load(&options).unwrap_err();
        let missing = error(Options { config: Some("nope.toml".into()), ..place.options(&[]) });
        assert_eq!(missing.path, place.path("work/nope.toml"));
        assert!(missing.message.starts_with("failed to read: "), "{missing}");
        error(place.options(&[("TOOLCRIB_CONFIG", "nope.toml")]));
        error(Options { mcp_config: vec!["nope.json".into()], ..place.options(&[]) });
        let folder = error(Options { config: Some(".".into()), ..place.options(&[]) });
        assert_eq!(folder.message, "is a folder, not a file");
    }

    #[test]
    fn cfg_07_relative_paths_start_at_the_file() {
        let place = Place::new(&[
            (
                "cfg/tools.toml",
                "[mcp_servers.a]\ncommand = './bin/a'\ncwd = 'work dir'\nargs = ['./x']\n\
                 env = { T = '${file:secrets/t}' }\n[mcp_servers.b]\ncommand = '~/bin/b'\n\
                 [mcp_servers.c]\ncommand = 'c/d'\n[builtins]\nroots = ['.', '~/p', '/srv']\n[skills]\npaths = ['skills']\n\
                 [commands.x]\nrun = ['./x']\ncwd = '..'\n\
                 [hooks.h]\nrun = ['./h', './x']\n[hooks.i]\nrun = ['bin/i']\ncwd = 'work dir'\n[hooks.j]\nrun = ['j']\n",
            ),
            ("cfg/secrets/t", "value-1\n"),
        ]);
        let loaded = place.load("cfg/tools.toml", &[], &[]);
        let a = server(&loaded, "a");
        assert_eq!(a.cwd, Some(place.text("cfg/work dir")));
        assert_eq!(a.command, Some(place.text("cfg/work dir/bin/a")));
        assert_eq!((a.args.as_slice(), a.env["T"].as_str()), (["./x".to_owned()].as_slice(), "value-1"));
        assert_eq!(server(&loaded, "b").command, Some(place.text("home/bin/b")));
        assert_eq!(server(&loaded, "c").command, Some(place.text("cfg/c/d")));
        assert_eq!(
            loaded.config.builtins.roots,
            [place.text("cfg"), place.text("home/p"), "/srv".to_owned()]
        );
        assert_eq!(loaded.config.commands["x"].run, [place.text("cfg/../x")]);
        assert_eq!(loaded.config.commands["x"].cwd, Some(place.text("cfg/..")));
        assert_eq!(loaded.config.skills.paths, [place.text("cfg/skills")]);
        let hooks = &loaded.config.hooks;
        assert_eq!(hooks["h"].run, [place.text("cfg/h"), "./x".to_owned()]);
        assert_eq!(hooks["i"].run, [place.text("cfg/work dir/bin/i")]);
        assert_eq!(hooks["i"].cwd, Some(place.text("cfg/work dir")));
        assert_eq!(hooks["j"].run, ["j"]);
    }

    #[test]
    fn cfg_01_a_missing_variable_disables_what_needs_it() {
        let place = Place::new(&[(
            "t.toml",
            "[mcp_servers.a]\ncommand = 'a'\nargs = ['${TOKEN}']\nenv = { X = '${NOPE}' }\n\
             [mcp_servers.b]\ncommand = 'b'\nargs = ['--t=${TOKEN}', '${LEVEL:-info}', '$HOME']\n\
             [mcp_servers.c]\nurl = 'http://h'\nbearer_token_env_var = 'NOPE'\n\
             [mcp_servers.d]\ncommand = 'd'\nargs = ['${NOPE}']\nenabled = false\n\
             [commands.x]\nrun = ['x', '${NOPE}']\n[builtins]\nroots = ['${NOPE}']\n",
        )]);
        let loaded = place.load("t.toml", &[], &[("TOKEN", "tok-123")]);
        let hint = "set it for toolcrib, or write `${NOPE:-default}`";
        let reason = |text: &str| text.replace("HINT", hint);
        assert_eq!(
            loaded.disabled.into_iter().collect::<Vec<_>>(),
            [
                ("a".to_owned(), reason("`env.X`: the environment variable `NOPE` is not set; HINT")),
                (
                    "c".to_owned(),
                    "`bearer_token_env_var`: the environment variable `NOPE` is not set; set it for toolcrib"
                        .to_owned()
                ),
            ]
        );
        assert_eq!(
            loaded.disabled_commands["x"],
            reason("`run[1]`: the environment variable `NOPE` is not set; HINT")
        );
        // A disabled server stays as it was written.
        assert_eq!(loaded.config.mcp_servers["a"].args, ["${TOKEN}"]);
        assert_eq!(loaded.config.mcp_servers["b"].args, ["--t=tok-123", "info", "$HOME"]);
        assert_eq!(loaded.config.builtins.roots, [""; 0]);
        assert_eq!(
            loaded.warnings,
            [reason(
                "an entry of `builtins.roots` is left out: the environment variable `NOPE` is not set; HINT"
            )]
        );
    }

    #[test]
    fn a_hook_with_a_missing_variable_stays_in_force() {
        let place = Place::new(&[(
            "t.toml",
            "[hooks.first]\nrun = ['a', '${TOKEN}']\n[hooks.second]\nrun = ['b']\nenv = { X = '${NOPE}' }\n\
             tools = ['m/*']\n[hooks.third]\nrun = ['c', '${file:nope}']\non = 'after'\n",
        )]);
        let loaded = place.load("t.toml", &[], &[("TOKEN", "tok-123")]);
        let hooks = &loaded.config.hooks;
        assert_eq!(hooks.keys().collect::<Vec<_>>(), ["first", "second", "third"]);
        assert_eq!((hooks["first"].run[1].as_str(), &hooks["first"].unusable), ("tok-123", &None));
        let why = "the environment variable `NOPE` is not set";
        assert_eq!(hooks["second"].unusable.as_deref(), Some(why));
        assert_eq!(
            (&hooks["second"].env["X"], &hooks["second"].tools[0]),
            (&"${NOPE}".into(), &"m/*".into())
        );
        let why = "a file that its configuration names cannot be read";
        assert_eq!(hooks["third"].unusable.as_deref(), Some(why));
        assert_eq!(
            loaded.warnings[0],
            "hook `second` refuses every call that it concerns: `env.X`: the environment variable `NOPE` is not set; \
             set it for toolcrib, or write `${NOPE:-default}`"
        );
        let third =
            "hook `third` refuses every call that it concerns: `run[1]`: `${file:nope}` cannot be read";
        assert!(loaded.warnings[1].starts_with(third), "{}", loaded.warnings[1]);
        assert_eq!(loaded.warnings.len(), 2);
    }

    #[test]
    fn sec_01_values_to_mask_are_collected() {
        let place = Place::new(&[
            (
                "t.toml",
                "[mcp_servers.a]\ncommand = '${TOOL}'\nargs = ['--tag=${TOKEN}', 'plain-argument']\n\
                 env = { S = 'sk-live-93f0a7d1c2e4', D = 'debug', N = '12345678', H = '${HOME}/data', F = '${file:f}' }\n\
                 [mcp_servers.b]\nurl = 'https://h/${KEY}'\nbearer_token_env_var = 'BEARER'\n\
                 http_headers = { Authorization = 'Bearer ${TOKEN}' }\n\
                 [commands.x]\nrun = ['x']\nenv = { Y = 'command-secret' }\n\
                 [hooks.x]\nrun = ['x', '${INNER}']\nenv = { Y = 'hook-secret' }\n",
            ),
            ("f", "from-file\n"),
            ("m.json", r#"{"mcpServers": {"c": {"command": "c", "env": {"J": "json-secret"}}}}"#),
        ]);
        let variables = [
            ("TOKEN", "tok-123"),
            ("KEY", "key-4567"),
            ("BEARER", "bearer-1"),
            ("TOOL", "tool-name"),
            ("INNER", "inner-word"),
        ];
        assert_eq!(
            place.load("t.toml", &["m.json"], &variables).secrets,
            [
                "sk-live-93f0a7d1c2e4",
                "Bearer tok-123",
                "command-secret",
                "hook-secret",
                "json-secret",
                "inner-word",
                "from-file",
                "bearer-1",
                "key-4567",
                "tok-123",
            ]
        );
    }

    #[test]
    fn s73_client_files_add_servers_and_our_own_file_wins() {
        let place = Place::new(&[
            ("t.toml", "[mcp_servers.Alpha]\ncommand = 'ours'\n"),
            (
                "p/.vscode/mcp.json",
                r#"{"servers": {"alpha": {"command": "theirs"}, "beta": {"command": "b", "timeout": 90000, "cwd": "sub",
                    "args": ["${workspaceFolder}/x", "${env:TOKEN}"]}, "gamma": {"command": "g", "env": {"K": "${input:k}"}},
                    "delta": {"args": []}}}"#,
            ),
            ("second.json", r#"{"mcpServers": {"BETA": {"command": "c"}, "delta": {"command": "d"}}}"#),
        ]);
        let loaded = place.load("t.toml", &["p/.vscode/mcp.json", "second.json"], &[("TOKEN", "tok-123")]);
        assert_eq!(loaded.config.mcp_servers.keys().collect::<Vec<_>>(), ["Alpha", "beta", "gamma"]);
        assert_eq!(server(&loaded, "Alpha").command.as_deref(), Some("ours"));
        let beta = server(&loaded, "beta");
        assert_eq!(beta.args, [place.text("p/x"), "tok-123".to_owned()]);
        assert_eq!(beta.cwd, Some(place.text("p/.vscode/sub")));
        assert_eq!(beta.tool_timeout, Duration::from_secs(90));
        assert_eq!(loaded.disabled.keys().collect::<Vec<_>>(), ["delta", "gamma"]);
        assert!(loaded.disabled["gamma"].starts_with("`env.K`: `${input:k}` is known only to the editor"));
        let ignored = |name, file, known| {
            let file = place.text(file);
            format!("server `{name}` in `{file}` is ignored: `{known}` of a file read before comes first")
        };
        assert_eq!(
            loaded.warnings,
            [
                ignored("alpha", "p/.vscode/mcp.json", "Alpha"),
                ignored("BETA", "second.json", "beta"),
                ignored("delta", "second.json", "delta"),
            ]
        );
        assert_eq!(
            loaded.sources,
            ["t.toml", "p/.vscode/mcp.json", "second.json"].map(|name| place.path(name))
        );
    }

    #[test]
    fn what_gateways_are_configured_with_loads() {
        let text = "[tools]\ncore = [\"*\"]\ndefer_mcp_tools = false\n\n[policy.rules]\n\"alpha/danger\" = \"ask\"\n\
                    \"*/x\" = \"allow\"\n\"*\" = \"deny\"\n\n[approvals]\ntimeout_ms = 1500\n\n[builtins]\nroots = [\"/r\"]\n\n\
                    [mcp_servers.\"od\u{e4}d name\"]\ncommand = \"python3\"\nargs = [\"-u\", \"na\u{ef}ve-日本\", \"--empty=\", \"C:\\\\dir\"]\n\
                    env = { EXTRA = \"on\" }\ncwd = \"/w d\"\nstartup_timeout_sec = 2.5\ntool_timeout_sec = 1\n\n\
                    [mcp_servers.h]\nurl = \"http://127.0.0.1:1/mcp\"\nhttp_headers = { Authorization = \"Bearer abcdef\" }\n";
        let place = Place::new(&[("t.toml", text)]);
        let loaded = place.load("t.toml", &[], &[]);
        assert_eq!(loaded.config.policy.rules["*"], Action::Deny);
        let odd = server(&loaded, "odäd name");
        assert_eq!(odd.args, ["-u", "na\u{ef}ve-日本", "--empty=", "C:\\dir"]);
        assert_eq!(odd.startup_timeout, Duration::from_millis(2500));
        assert_eq!(odd.cwd.as_deref(), Some("/w d"));
        assert_eq!(loaded.warnings, [""; 0]);
    }

    #[test]
    fn rel_01_an_error_says_where_and_shows_no_value() {
        let place = Place::new(&[("t.toml", "[mcp_servers.a.env]\nTOKEN = \"sk-live-1\n")]);
        let options = Options { config: Some(place.path("t.toml")), ..place.options(&[]) };
        let error = load(&options).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}:2:19: ", place.text("t.toml"))), "{error}");
        assert!(!error.contains("sk-live"), "{error}");
    }
}
