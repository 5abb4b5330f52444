//! Decides which values are masked in logs.

use std::path::Path;

use super::environment::Environment;

/// Shorter values would blacken half of a log and protect nothing.
const SHORTEST_SECRET: usize = 6;

/// Adds what has to be masked when this value is a secret: the value, its lines, and a credential after its scheme.
pub(crate) fn collect(value: &str, environment: &Environment, secrets: &mut Vec<String>) {
    let credential = value
        .split_once(' ')
        .filter(|(scheme, _)| ["bearer", "basic", "token"].contains(&scheme.to_lowercase().as_str()))
        .map(|(_, credential)| credential.trim());
    // Logs are written line by line, and so is a key of several lines.
    let lines = value.lines().filter(|_| value.contains('\n')).map(str::trim);
    let candidates = std::iter::once(value).chain(credential).chain(lines);
    secrets.extend(candidates.filter(|text| is_worth_masking(text, environment)).map(str::to_owned));
}

/// Longest first, so that no part of a secret is masked before the whole; each once.
pub(crate) fn in_order(mut secrets: Vec<String>) -> Vec<String> {
    secrets.sort_unstable_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
    secrets.dedup();
    secrets
}

fn is_worth_masking(text: &str, environment: &Environment) -> bool {
    text.chars().count() >= SHORTEST_SECRET
        && text.parse::<f64>().is_err()
        && !is_known_path(text, environment)
        && !["disabled", "enabled", "verbose", "warning"].contains(&text.to_lowercase().as_str())
}

/// A folder from PATH, something below the home folder, or any path that exists.
fn is_known_path(text: &str, environment: &Environment) -> bool {
    let path = Path::new(text);
    let search_path = environment.get("PATH").unwrap_or_default();
    text == search_path
        || environment.home().is_some_and(|home| home.parent().is_some() && path.starts_with(home))
        || std::env::split_paths(search_path).any(|folder| folder == path)
        || path.is_absolute() && path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: &str, expected: &[&str]) {
        let environment = Environment::from([("HOME", "/home/u"), ("PATH", "/usr/local/nope:/opt/nope")]);
        let mut secrets = Vec::new();
        collect(value, &environment, &mut secrets);
        assert_eq!(secrets, expected, "{value}");
    }

    #[test]
    fn sec_01_what_protects_something_is_masked() {
        check("sk-live-93f0a7d1c2e4", &["sk-live-93f0a7d1c2e4"]);
        check("Bearer abcdef123", &["Bearer abcdef123", "abcdef123"]);
        check("-----BEGIN\nabcdefgh\nxyz\n", &["-----BEGIN\nabcdefgh\nxyz\n", "-----BEGIN", "abcdefgh"]);
        check("/not/there/abc", &["/not/there/abc"]);
        for harmless in
            ["", "debug", "true", "false", "12345678", "-1.5e10", "enabled", "/home/u/data", "/opt/nope"]
        {
            check(harmless, &[]);
        }
        check("/usr/local/nope:/opt/nope", &[]);
    }

    #[test]
    fn longer_secrets_come_first() {
        let secrets = ["abcdef", "abcdefgh", "abcdef", "bbcdef"].map(str::to_owned).to_vec();
        assert_eq!(in_order(secrets), ["abcdefgh", "abcdef", "bbcdef"]);
    }
}
