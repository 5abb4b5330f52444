//! The command line: what a person types, and what is printed for them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::config::environment::Environment;
use crate::config::{Loaded, Options, load};
use crate::gateway::Gateway;
use crate::process::guard::{guard_main, set_guard_program};
use crate::state::LazyState;

pub mod approvals;
pub mod demo;
pub mod doctor;
pub mod inspect;
pub mod log;
pub mod serve;
pub mod stats;

/// Exit codes beside 0; `--help` lists them.
const FAILED: u8 = 1;
const MISUSED: u8 = 2;
const BAD_CONFIGURATION: u8 = 3;

const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  a tool or a server failed; the reason is printed
  2  wrong arguments on the command line
  3  the configuration cannot be used; file, line and key are printed

Configuration: --config FILE, else $TOOLCRIB_CONFIG, else tools.toml in the user's
configuration folder (~/.config/toolcrib/tools.toml). Without any, the built-in tools
work on the current folder. $TOOLCRIB_LOG sets what is logged (warn; info, debug).

First steps:
  toolcrib demo                 a minute's tour, nothing needed
  toolcrib doctor               do my servers start, and what is wrong?
  toolcrib call file_read '{\"path\": \"README.md\"}'";

/// One MCP gateway over stdio in front of every tool an AI agent may use.
#[derive(Parser)]
#[command(name = "toolcrib", version, about, after_help = AFTER_HELP, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Args)]
struct Global {
    /// The configuration file.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Adds the servers of a client's JSON file (mcpServers and the like). May be given several times.
    #[arg(long, global = true, value_name = "FILE")]
    mcp_config: Vec<PathBuf>,
    /// The state file, `:memory:` for none. Default: in the user's state folder.
    #[arg(long, global = true, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Writes the log to a file instead of stderr.
    #[arg(long, global = true, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// The session mode: work, chat, code, or one of the configuration.
    #[arg(long, global = true, value_name = "NAME")]
    mode: Option<String>,
    /// Prints JSON instead of tables.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Serves one MCP client on standard input and output; what clients start. The default.
    Serve,
    /// Lists the tools that a client sees.
    List {
        /// Also the tools that wait behind tool_search.
        #[arg(long)]
        all: bool,
    },
    /// Calls a tool.
    Call {
        /// Its name, as `list` shows it.
        tool: String,
        /// Its arguments as a JSON object; `-` reads them from standard input.
        #[arg(default_value = "{}")]
        arguments: String,
    },
    /// Shows one tool: source, hints, full schema.
    Describe {
        /// Its name, as `list` shows it.
        tool: String,
    },
    /// Starts every server and says how long it took, how many tools it has, and what to do if it failed.
    Doctor,
    /// Says what the tool list costs a client, in bytes and estimated tokens, against all tools shown in full.
    Stats {
        /// Bytes and tokens of the list; there is nothing else to tell yet.
        #[arg(long)]
        tokens: bool,
    },
    /// Lists and answers the questions of agents whose client cannot ask.
    Approvals {
        #[command(subcommand)]
        action: Option<approvals::Action>,
    },
    /// A minute's tour: starts the real server, lists, calls, is refused, fails.
    Demo,
    /// Watches over children of a gateway; started by the gateway itself.
    #[command(hide = true)]
    Guard,
}

/// Runs the program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(MISUSED) } else { ExitCode::SUCCESS };
        }
    };
    if matches!(cli.command, Some(Command::Guard)) {
        return guard_main();
    }
    if let Ok(program) = std::env::current_exe() {
        set_guard_program(program);
    }
    let loaded = match configuration(&cli.global) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("toolcrib: {error:#}");
            return ExitCode::from(BAD_CONFIGURATION);
        }
    };
    let is_server = matches!(cli.command, None | Some(Command::Serve));
    let _log = match log::start(cli.global.log_file.as_deref(), is_server) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("toolcrib: {error:#}");
            return ExitCode::from(FAILED);
        }
    };
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    for note in &loaded.notes {
        tracing::debug!("{note}");
    }
    match run(&cli, &loaded) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("toolcrib: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

fn configuration(global: &Global) -> Result<Loaded> {
    let options = Options {
        config: global.config.clone(),
        mcp_config: global.mcp_config.clone(),
        env: Environment::of_process(),
        directory: std::env::current_dir().context("the current folder cannot be found")?,
    };
    let mut loaded = load(&options)?;
    if let Some(mode) = &global.mode {
        loaded.config.tools.session_mode.clone_from(mode);
    }
    // What spans tables is judged where it is put together; a server must not start with half of it.
    Gateway::new(&loaded, Arc::new(LazyState::at(Some(":memory:".into()))))
        .context("the configuration cannot be used")?;
    Ok(loaded)
}

fn run(cli: &Cli, loaded: &Loaded) -> Result<ExitCode> {
    // One thread: messages pass from pipe to pipe without ever waiting for another core.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the event loop cannot be started")?;
    let json = cli.global.json;
    let state = Arc::new(LazyState::at(cli.global.state.clone()));
    let gateway = || Gateway::new(loaded, Arc::clone(&state)).context("the configuration cannot be used");
    let code = match &cli.command {
        None | Some(Command::Serve) => runtime.block_on(serve::run(gateway()?)),
        Some(Command::List { all }) => runtime.block_on(inspect::list(gateway()?, *all, json)),
        Some(Command::Describe { tool }) => runtime.block_on(inspect::describe(gateway()?, tool, json)),
        Some(Command::Call { tool, arguments }) => {
            runtime.block_on(inspect::call(gateway()?, tool, arguments, json))
        }
        Some(Command::Stats { tokens: _ }) => runtime.block_on(stats::run(gateway()?, json)),
        Some(Command::Doctor) => runtime.block_on(doctor::run(gateway()?, loaded, json)),
        Some(Command::Approvals { action }) => approvals::run(state.get(), action.as_ref(), json),
        Some(Command::Demo) => runtime.block_on(demo::run()),
        Some(Command::Guard) => Ok(guard_main()),
    };
    // A helper thread may still sit in a read of standard input, which nothing can interrupt.
    runtime.shutdown_background();
    code
}
