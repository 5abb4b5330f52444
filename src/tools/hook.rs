//! What is asked before and after a call: a hook, and its answers.

use futures::future::BoxFuture;

use super::json::RawJson;
use super::service::{Input, ToolDefinition, ToolOutput, Turn};

/// The call that a hook is asked about.
#[derive(Debug, Clone, Copy)]
pub struct HookCall<'a> {
    /// The tool as the catalog holds it.
    pub tool: &'a ToolDefinition,
    /// Its arguments, as earlier hooks have left them.
    pub input: &'a Input,
    /// Who called, and when.
    pub turn: &'a Turn,
}

/// What a hook says before the tool runs. The reasons are read by the model.
#[derive(Debug, Clone, PartialEq)]
pub enum Before {
    /// The call goes on as it is.
    Allow,
    /// The call is not permitted.
    Deny {
        /// Why.
        reason: String,
    },
    /// The call fails without having run.
    Block {
        /// Why.
        reason: String,
    },
    /// The call goes on with these arguments, an object.
    Rewrite(RawJson),
}

/// What a hook says once the tool has run.
#[derive(Debug, Clone, PartialEq)]
pub enum After {
    /// The result stays.
    Keep,
    /// This goes to the client in its place.
    Replace(ToolOutput),
    /// The result is withheld and the call fails; what the tool did stays done.
    Block {
        /// Why, for the model.
        reason: String,
    },
}

/// Looks at calls before and after they run.
///
/// A hook that cannot decide refuses: there is no answer for "unknown". Dropping a future ends its work.
pub trait Hook: Send + Sync + 'static {
    /// Its name, for people and logs.
    fn name(&self) -> &str;

    /// Whether it is asked about calls of this tool at all.
    fn concerns(&self, tool: &ToolDefinition) -> bool;

    /// Asked before the tool runs.
    fn before<'a>(&'a self, _: HookCall<'a>) -> BoxFuture<'a, Before> {
        Box::pin(std::future::ready(Before::Allow))
    }

    /// Asked about what came back, before the client sees it.
    fn after<'a>(&'a self, _: HookCall<'a>, _: &'a ToolOutput) -> BoxFuture<'a, After> {
        Box::pin(std::future::ready(After::Keep))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::service::{Source, ToolMetadata};

    struct Onlooker;

    impl Hook for Onlooker {
        fn name(&self) -> &str {
            "onlooker"
        }

        fn concerns(&self, _: &ToolDefinition) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn a_hook_that_says_nothing_changes_nothing() {
        let hook: Box<dyn Hook> = Box::new(Onlooker);
        let tool =
            ToolDefinition::new("t", "d", RawJson::EMPTY_OBJECT, Source::Builtin, ToolMetadata::default());
        let input = Input::new(RawJson::EMPTY_OBJECT).unwrap();
        let turn = Turn::detached();
        let call = HookCall { tool: &tool, input: &input, turn: &turn };
        assert_eq!(hook.before(call).await, Before::Allow);
        assert_eq!(hook.after(call, &ToolOutput::text("x")).await, After::Keep);
    }
}
