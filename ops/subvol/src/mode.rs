//! Permission bits as `chmod` takes them: octal, or symbolic such as `u+x,go-w`.

/// A change of permission bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModeChange {
    /// Exactly these.
    Exact(u32),
    /// One clause after another.
    Symbolic(Vec<Clause>),
}

/// `u+rw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clause {
    /// Which of user, group and others: the rwx bits and special bits that may be touched.
    scope: u32,
    action: Action,
    bits: u32,
    /// `X`: execution for directories and where somebody may execute already.
    conditional_execute: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Add,
    Remove,
    Set,
}

const USER: u32 = 0o4700;
const GROUP: u32 = 0o2070;
const OTHERS: u32 = 0o1007;
const EXECUTE: u32 = 0o111;

impl std::str::FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || format!("`{text}` is no mode: write octal digits such as 0644, or clauses such as u+x,go-w");
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return match u32::from_str_radix(text, 8) {
                Ok(mode) if mode <= 0o7777 => Ok(Self::Exact(mode)),
                _ => Err(bad()),
            };
        }
        text.split(',')
            .map(|clause| parse_clause(clause).ok_or_else(bad))
            .collect::<Result<_, _>>()
            .map(Self::Symbolic)
    }
}

fn parse_clause(text: &str) -> Option<Clause> {
    let split = text.find(['+', '-', '='])?;
    let (who, rest) = text.split_at(split);
    let mut letters = rest.chars();
    let action = match letters.next()? {
        '+' => Action::Add,
        '-' => Action::Remove,
        _ => Action::Set,
    };
    let mut scope = 0;
    for letter in who.chars() {
        scope |= match letter {
            'u' => USER,
            'g' => GROUP,
            'o' => OTHERS,
            'a' => USER | GROUP | OTHERS,
            _ => return None,
        };
    }
    if scope == 0 {
        scope = USER | GROUP | OTHERS;
    }
    let (mut bits, mut conditional_execute) = (0, false);
    for letter in letters {
        bits |= match letter {
            'r' => 0o444,
            'w' => 0o222,
            'x' => EXECUTE,
            'X' => {
                conditional_execute = true;
                0
            }
            's' => 0o6000,
            't' => 0o1000,
            _ => return None,
        };
    }
    Some(Clause { scope, action, bits, conditional_execute })
}

impl ModeChange {
    /// The permission bits after the change.
    pub fn apply(&self, old: u32, is_directory: bool) -> u32 {
        let clauses = match self {
            Self::Exact(mode) => return *mode,
            Self::Symbolic(clauses) => clauses,
        };
        clauses.iter().fold(old & 0o7777, |mode, clause| {
            let execute = clause.conditional_execute && (is_directory || mode & EXECUTE != 0);
            let bits = (clause.bits | if execute { EXECUTE } else { 0 }) & clause.scope;
            match clause.action {
                Action::Add => mode | bits,
                Action::Remove => mode & !bits,
                Action::Set => mode & !clause.scope | bits,
            }
        })
    }
}

/// Reads octal permission bits alone.
///
/// # Errors
/// A text for people.
pub fn parse_octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| format!("`{text}` is no mode: write octal digits such as 0755"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_do_what_chmod_does() {
        for (text, old, directory, new) in [
            ("0644", 0o7777, false, 0o644),
            ("u+x", 0o644, false, 0o744),
            ("go-w,u+s", 0o666, false, 0o4644),
            ("a=r", 0o777, false, 0o444),
            ("+X", 0o644, false, 0o644),
            ("+X", 0o744, false, 0o755),
            ("+X", 0o600, true, 0o711),
            ("g=", 0o2775, true, 0o705),
            ("+t", 0o777, true, 0o1777),
        ] {
            let change: ModeChange = text.parse().expect(text);
            assert_eq!(change.apply(old, directory), new, "{text}");
        }
    }

    #[test]
    fn what_is_no_mode_is_refused() {
        for text in ["", "8", "10000", "u", "u+q", "z+x", "u+x,", "-1x"] {
            assert!(text.parse::<ModeChange>().is_err(), "{text}");
        }
    }
}
