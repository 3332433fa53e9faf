//! The tables of `protocol.md` say what the code says: a client that somebody else writes from them must work.

use proptest::strategy::{BoxedStrategy, Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::{golden::WHOLE_LOOKUP, samples, variant_name};
use crate::attributes::{ATTRIBUTES_LENGTH, MAX_ENTRY_LENGTH};
use crate::error::{ErrorCode, Retry};
use crate::limits;
use crate::request::{FileRequest, InodeRef};

const DOCUMENT: &str = include_str!("../../../ops/docs/protocol.md");

/// The rows of the first table under a heading, as cells; without the head of the table.
fn table(heading: &str) -> Vec<Vec<String>> {
    let start = DOCUMENT.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no heading `{heading}`"));
    DOCUMENT[start..]
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

/// What stands between backticks, at every second place.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The names of the outermost fields of a variant, or of the struct that is all of a variant, from the indented `Debug` text.
fn field_names(value: &impl std::fmt::Debug) -> Vec<String> {
    let text = format!("{value:#?}");
    let depth = if text.lines().next().is_some_and(|line| line.ends_with('(')) { 8 } else { 4 };
    text.lines()
        .filter_map(|line| {
            line.get(depth..).filter(|rest| line[..depth].trim().is_empty() && !rest.starts_with(' '))
        })
        .filter_map(|rest| rest.split_once(':').map(|(name, _)| name.to_owned()))
        .collect()
}

fn check<T: std::fmt::Debug>(heading: &str, samples: Vec<BoxedStrategy<T>>) {
    let rows = table(heading);
    let mut runner = TestRunner::deterministic();
    assert_eq!(rows.len(), samples.len(), "{heading}");
    for (number, (row, sample)) in rows.iter().zip(samples).enumerate() {
        let value = sample.new_tree(&mut runner).expect("no filters").current();
        assert_eq!(row[0], number.to_string(), "{heading}");
        assert_eq!(row[1], format!("`{}`", variant_name(&value)), "{heading}, tag {number}");
        assert_eq!(quoted(&row[2]), field_names(&value), "{heading}, tag {number}");
    }
}

#[test]
fn message_tables() {
    check("### Session requests", samples::session_requests());
    check("### Administration requests", samples::admin_requests());
    check("### File requests", samples::file_requests());
    check("### Session responses", samples::session_responses());
    check("### Administration responses", samples::admin_responses());
    check("### File responses", samples::file_responses());
    check("## Pushes", samples::pushes());
}

#[test]
fn families() {
    for (heading, names) in [
        ("## Requests", &["Session", "Admin", "File", "Compound"][..]),
        ("## Responses", &["Error", "Session", "Admin", "File", "Compound"]),
    ] {
        let rows = table(heading);
        assert_eq!(rows.len(), names.len());
        for (number, (row, name)) in rows.iter().zip(names).enumerate() {
            assert_eq!(
                (row[0].as_str(), quoted(&row[1])),
                (number.to_string().as_str(), vec![*name]),
                "{heading}"
            );
        }
    }
}

#[test]
fn requests_know_their_names() {
    let mut runner = TestRunner::deterministic();
    for sample in samples::file_requests() {
        let request: FileRequest = sample.new_tree(&mut runner).expect("no filters").current();
        assert_eq!(request.name(), variant_name(&request));
    }
}

#[test]
fn error_table() {
    let rows = table("## Errors");
    assert_eq!(rows.len(), ErrorCode::ALL.len());
    for (row, code) in rows.iter().zip(ErrorCode::ALL) {
        let retry = match code.retry() {
            Retry::Never => "never",
            Retry::SameConnection => "same connection",
            Retry::AfterReconnect => "after reconnect",
        };
        let expected = [
            (*code as u16).to_string(),
            format!("`{}`", code.name()),
            format!("{} {}", code.errno_name(), code.errno()),
            retry.to_owned(),
            code.message().to_owned(),
        ];
        assert_eq!(row[..], expected);
        assert_eq!(ErrorCode::from_number(*code as u16), Some(*code));
    }
    assert!(ErrorCode::ALL.is_sorted(), "in the order of their numbers");
}

#[test]
fn limits_and_sizes() {
    for (what, numbers) in [
        ("body", vec![limits::MAX_BODY, limits::MAX_BODY_BEFORE_AUTHENTICATION]),
        ("payload", vec![limits::MAX_PAYLOAD]),
        ("unanswered requests of a connection", vec![limits::MAX_IN_FLIGHT as usize]),
        ("operation window", vec![limits::OPERATION_WINDOW as usize]),
        ("steps of a compound", vec![limits::MAX_COMPOUND_STEPS]),
        ("numbers of a list of inodes or recalls", vec![limits::MAX_INODE_LIST]),
        ("targets of a `Recall`", vec![limits::MAX_RECALL_TARGETS]),
        ("components of a `ResolvePath`", vec![limits::MAX_PATH_COMPONENTS]),
        ("entries of a `Directory`", vec![limits::MAX_DIRECTORY_ENTRIES, limits::MAX_DIRECTORY_BYTES]),
        ("tenants or volumes of a list", vec![limits::MAX_LIST_PAGE]),
        ("rows of each list in a status report", vec![limits::MAX_STATUS_ROWS]),
        ("name, xattr name", vec![limits::MAX_NAME]),
        ("name, xattr name", vec![limits::MAX_XATTR_NAME]),
        ("xattr value, xattr names", vec![limits::MAX_XATTR_VALUE]),
        ("xattr value, xattr names", vec![limits::MAX_XATTR_LIST]),
        ("link target", vec![limits::MAX_SYMLINK]),
        ("label", vec![limits::MAX_LABEL]),
        ("token", vec![limits::MAX_TOKEN]),
        ("client name", vec![limits::MAX_CLIENT_NAME]),
        ("error detail", vec![limits::MAX_ERROR_DETAIL]),
    ] {
        let row = table("## Limits")
            .into_iter()
            .find(|row| row[0] == what)
            .unwrap_or_else(|| panic!("no row `{what}`"));
        let written: Vec<usize> =
            row[1].split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        assert_eq!(written, numbers, "{what}");
    }
    // The sum that decides whether a compound's replies fit.
    let list = |max_entries| FileRequest::ReadDirectory {
        inode: InodeRef::Explicit(1),
        after_cookie: 0,
        max_entries,
        with_attributes: false,
    };
    let text = format!(
        "per step, {} plus {} for `GetXattr` and `ListXattrs`, {} for `ReadLink`, {} per component for `ResolvePath`, and the \
         lesser of {} and {} per entry for `ReadDirectory`",
        FileRequest::StatFs.reply_bound(),
        limits::MAX_XATTR_VALUE,
        limits::MAX_SYMLINK,
        ATTRIBUTES_LENGTH,
        limits::MAX_DIRECTORY_BYTES,
        list(1).reply_bound() - list(0).reply_bound(),
    );
    let flat: Vec<&str> = DOCUMENT.split_whitespace().collect();
    assert!(flat.join(" ").contains(&text), "the document does not say: {text}");
    assert_eq!(list(1).reply_bound() - list(0).reply_bound(), MAX_ENTRY_LENGTH);
}

#[test]
fn the_example_is_the_golden_frame() {
    let start = DOCUMENT.find("\n## An example\n").expect("a section");
    let block = DOCUMENT[start..].split("```").nth(1).expect("a code block");
    let bytes: String = block
        .lines()
        .flat_map(|line| {
            line.split_whitespace().take_while(|word| word.len() == 2 && u8::from_str_radix(word, 16).is_ok())
        })
        .collect();
    assert_eq!(bytes, WHOLE_LOOKUP.replace(' ', ""));
}
