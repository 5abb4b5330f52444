//! Ranks tools by a query in words: BM25 over name, title, description and parameters.

use std::collections::HashMap;

/// What a tool says about itself.
#[derive(Clone, Debug, Default)]
pub struct Document<'a> {
    /// The wire name, the server's part included.
    pub name: &'a str,
    /// Empty if there is none.
    pub title: &'a str,
    /// Empty if there is none.
    pub description: &'a str,
    /// Names of the arguments, nested ones too if the caller likes.
    pub parameter_names: Vec<&'a str>,
}

/// A tool that shares a word with the query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// The place of the tool among the documents of `Index::build`.
    pub doc: usize,
    /// Higher is better; comparable within one search only.
    pub score: f32,
}

/// One part of a document: its weight and how strongly its length counts.
#[derive(Clone, Copy)]
struct Field {
    weight: f64,
    b: f64,
}

/// Name, title, first sentence of the description, the rest of it, parameters.
///
/// Tuned on the retrieval sets, as are the constants below.
const FIELDS: [Field; 5] = [
    Field { weight: 3.0, b: 0.6 },
    Field { weight: 2.0, b: 0.6 },
    Field { weight: 1.3, b: 0.9 },
    Field { weight: 0.7, b: 0.75 },
    Field { weight: 0.5, b: 0.9 },
];
const NAME: u8 = 0;

/// Saturation of a term's frequency.
const K1: f64 = 0.9;
/// What a match is worth at least (BM25+, Lv and Zhai 2011).
const DELTA: f64 = 0.1;
/// What covering the whole name is worth: each term earns its share of the name's weight.
const NAME_COVERAGE: f64 = 3.0;

/// An inverted index with the weight of each term in each document computed in advance.
///
/// The formula is BM25F (Robertson, Zaragoza and Taylor 2004) with one saturation over the weighted sum of the fields,
/// the floor of BM25+, and a share for the coverage of the name.
#[derive(Debug, Default)]
pub struct Index {
    terms: HashMap<Box<str>, u32>,
    /// Where the postings of each term begin; one entry more than terms.
    starts: Vec<u32>,
    postings: Vec<Posting>,
    docs: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Posting {
    doc: u32,
    weight: f32,
}

impl Index {
    /// Reads all documents once; a hit names a document by its place among them.
    pub fn build<'a>(docs: impl Iterator<Item = Document<'a>>) -> Self {
        let mut corpus = Corpus::default();
        docs.for_each(|doc| corpus.add(&doc));
        corpus.into_index()
    }

    /// The best documents for a query, best first, earlier documents first among equals.
    ///
    /// Words that no document has are ignored; a query without any other finds nothing.
    pub fn search(&self, query: &str, limit: usize) -> Vec<Hit> {
        self.search_among(query, limit, |_| true)
    }

    /// The same among the documents that `may_be_hit` lets pass; the weights stay those of the whole index.
    pub fn search_among(&self, query: &str, limit: usize, may_be_hit: impl Fn(usize) -> bool) -> Vec<Hit> {
        let mut scores = vec![0_f32; self.docs];
        let mut matched: Vec<u32> = Vec::new();
        for term in self.query_terms(query) {
            for posting in self.postings_of(term) {
                let score = &mut scores[posting.doc as usize];
                // Every weight is above zero, so that zero means not seen yet.
                if *score == 0.0 {
                    matched.push(posting.doc);
                }
                *score += posting.weight;
            }
        }
        let hits = matched.into_iter().map(|doc| Hit { doc: doc as usize, score: scores[doc as usize] });
        best(hits.filter(|hit| may_be_hit(hit.doc)).collect(), limit)
    }

    /// The known terms of a query, each once, in order of first mention.
    fn query_terms(&self, query: &str) -> Vec<u32> {
        let mut terms: Vec<u32> = Vec::new();
        for_each_word(query, &mut |word| {
            if !is_stop_word(word)
                && let Some(term) = self.terms.get(&*stem(word))
                && !terms.contains(term)
            {
                terms.push(*term);
            }
        });
        terms
    }

    fn postings_of(&self, term: u32) -> &[Posting] {
        let term = term as usize;
        &self.postings[self.starts[term] as usize..self.starts[term + 1] as usize]
    }
}

/// The first `limit` of the hits in order, without sorting the rest.
fn best(mut hits: Vec<Hit>, limit: usize) -> Vec<Hit> {
    let order = |a: &Hit, b: &Hit| b.score.total_cmp(&a.score).then(a.doc.cmp(&b.doc));
    if limit == 0 {
        return Vec::new();
    }
    if hits.len() > limit {
        hits.select_nth_unstable_by(limit - 1, order);
        hits.truncate(limit);
    }
    hits.sort_unstable_by(order);
    hits
}

/// Documents as interned terms, until the last one is known and weights can be computed.
#[derive(Default)]
struct Corpus {
    /// Words as they stand in texts, lower case; `None` for stop words. Many words share a term.
    words: HashMap<Box<str>, Option<u32>, foldhash::fast::RandomState>,
    terms: HashMap<Box<str>, u32>,
    /// All documents one after another.
    occurrences: Vec<(u32, u8)>,
    /// Where each document ends in `occurrences`.
    ends: Vec<usize>,
    lengths: Vec<[u32; FIELDS.len()]>,
}

impl Corpus {
    fn add(&mut self, doc: &Document) {
        let (head, tail) = head_and_tail(doc.description);
        let mut lengths = [0; FIELDS.len()];
        let mut take = |field: u8, text: &str| {
            for_each_word(text, &mut |word| {
                if let Some(term) = self.intern(word) {
                    self.occurrences.push((term, field));
                    lengths[field as usize] += 1;
                }
            });
        };
        take(NAME, doc.name);
        take(1, doc.title);
        take(2, head);
        take(3, tail);
        doc.parameter_names.iter().for_each(|name| take(4, name));
        self.ends.push(self.occurrences.len());
        self.lengths.push(lengths);
    }

    fn intern(&mut self, word: &str) -> Option<u32> {
        if let Some(term) = self.words.get(word) {
            return *term;
        }
        let term = (!is_stop_word(word)).then(|| {
            let next = self.terms.len() as u32;
            *self.terms.entry(stem(word)).or_insert(next)
        });
        self.words.insert(word.into(), term);
        term
    }

    fn into_index(self) -> Index {
        let docs = self.ends.len();
        let mut averages = [0_f64; FIELDS.len()];
        for lengths in &self.lengths {
            averages.iter_mut().zip(lengths).for_each(|(sum, length)| *sum += f64::from(*length));
        }
        averages.iter_mut().for_each(|sum| *sum = (*sum / docs as f64).max(1e-6));

        // Weighted frequencies, document by document.
        let mut frequencies: Vec<(u32, f64, bool)> = Vec::with_capacity(self.occurrences.len());
        let mut ends: Vec<usize> = Vec::with_capacity(docs);
        let mut docs_with: Vec<u32> = vec![0; self.terms.len()];
        let mut sums: Vec<f64> = vec![0.0; self.terms.len()];
        let mut is_named: Vec<bool> = vec![false; self.terms.len()];
        let mut start = 0;
        for (end, lengths) in self.ends.iter().zip(&self.lengths) {
            let scales: [f64; FIELDS.len()] = std::array::from_fn(|field| {
                let Field { weight, b } = FIELDS[field];
                weight / (1.0 - b + b * f64::from(lengths[field]) / averages[field])
            });
            let occurrences = &self.occurrences[start..*end];
            start = *end;
            for &(term, field) in occurrences {
                sums[term as usize] += scales[field as usize];
                is_named[term as usize] |= field == NAME;
            }
            for &(term, _) in occurrences {
                let sum = std::mem::take(&mut sums[term as usize]);
                if sum > 0.0 {
                    frequencies.push((term, sum, std::mem::take(&mut is_named[term as usize])));
                    docs_with[term as usize] += 1;
                }
            }
            ends.push(frequencies.len());
        }

        let mut starts: Vec<u32> = Vec::with_capacity(docs_with.len() + 1);
        let mut total = 0;
        for count in &docs_with {
            starts.push(total);
            total += count;
        }
        starts.push(total);
        let rarity: Vec<f64> = docs_with.iter().map(|count| rarity(*count, docs)).collect();

        let mut postings = vec![Posting::default(); frequencies.len()];
        let mut free: Vec<u32> = starts.clone();
        let mut start = 0;
        for (doc, end) in ends.into_iter().enumerate() {
            let frequencies = &frequencies[start..end];
            start = end;
            let named = frequencies.iter().filter(|(_, _, is_named)| *is_named);
            let name_mass: f64 = named.map(|(term, _, _)| rarity[*term as usize]).sum();
            for &(term, frequency, is_named) in frequencies {
                let rarity = rarity[term as usize];
                let share = if is_named { rarity / name_mass } else { 0.0 };
                let slot = &mut free[term as usize];
                postings[*slot as usize] =
                    Posting { doc: doc as u32, weight: weight(frequency, rarity, share) };
                *slot += 1;
            }
        }
        Index { terms: self.terms, starts, postings, docs }
    }
}

/// How much a term says that `count` of `docs` documents have.
fn rarity(count: u32, docs: usize) -> f64 {
    let count = f64::from(count);
    (1.0 + (docs as f64 - count + 0.5) / (count + 0.5)).ln()
}

/// What a term adds to a document's score.
fn weight(frequency: f64, rarity: f64, share_of_name: f64) -> f32 {
    let saturated = frequency * (K1 + 1.0) / (frequency + K1) + DELTA;
    (rarity * saturated + NAME_COVERAGE * share_of_name) as f32
}

/// The first sentence of a description, which says what a tool is for, and the rest.
fn head_and_tail(description: &str) -> (&str, &str) {
    /// Shorter than this it is no sentence but an abbreviation or a heading.
    const SHORTEST: usize = 20;
    /// Where to cut when no sentence ends.
    const LONGEST: usize = 200;
    let bytes = description.as_bytes();
    let cut = bytes.iter().enumerate().find_map(|(at, byte)| match byte {
        b'.' | b'!' | b'?' => {
            let ends_word = at.checked_sub(1).is_some_and(|before| {
                let before = bytes[before];
                before.is_ascii_lowercase()
                    || before.is_ascii_digit()
                    || matches!(before, b')' | b']' | b'"' | b'\'')
            });
            let is_last = bytes.get(at + 1).is_none_or(u8::is_ascii_whitespace);
            (ends_word && is_last && at + 1 >= SHORTEST).then_some(at + 1)
        }
        b'\n' => {
            let rest = description[at..].trim_start_matches([' ', '\t', '\n', '\r']);
            let is_blank_line = description[at + 1..].trim_start_matches([' ', '\t', '\r']).starts_with('\n');
            ((is_blank_line || starts_with_heading(rest)) && at >= SHORTEST).then_some(at)
        }
        _ => None,
    });
    description.split_at(cut.unwrap_or_else(|| description.floor_char_boundary(LONGEST)))
}

fn starts_with_heading(text: &str) -> bool {
    ["Args", "Parameters", "Returns", "Example", "Usage", "Note"]
        .iter()
        .any(|heading| text.starts_with(heading))
}

/// Calls `act` with each word: alphanumeric runs, parted at camelCase and, behind a word, before digits; lower case.
///
/// Scripts that are written without spaces give a word for each character.
fn for_each_word(text: &str, act: &mut impl FnMut(&str)) {
    let bytes = text.as_bytes();
    let mut lower = String::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        // Most runs are plain lower case and need no second look.
        let mut seen = Sort::Gap as u8;
        while let Some(byte) = bytes.get(at)
            && SORTS[usize::from(*byte)] != Sort::Gap as u8
        {
            seen |= SORTS[usize::from(*byte)];
            at += 1;
        }
        if seen == Sort::Lower as u8 {
            act(&text[start..at]);
        } else if seen != Sort::Gap as u8 {
            split_run(&text[start..at], &mut lower, act);
        }
        at += 1;
    }
}

/// Sorts of bytes, as bits.
#[derive(Clone, Copy)]
enum Sort {
    Gap = 0,
    Lower = 1,
    /// Needs a closer look: capitals, digits, anything but ASCII.
    Mixed = 2,
}

const SORTS: [u8; 256] = {
    let mut sorts = [Sort::Gap as u8; 256];
    let mut byte = 0;
    while byte < 256 {
        sorts[byte] = match byte as u8 {
            b'a'..=b'z' => Sort::Lower as u8,
            b'A'..=b'Z' | b'0'..=b'9' | 0x80.. => Sort::Mixed as u8,
            _ => Sort::Gap as u8,
        };
        byte += 1;
    }
    sorts
};

fn split_run(run: &str, lower: &mut String, act: &mut impl FnMut(&str)) {
    let mut end = |word: &str| {
        lower.clear();
        if word.is_ascii() {
            lower.push_str(word);
            lower.make_ascii_lowercase();
        } else {
            lower.extend(word.chars().flat_map(char::to_lowercase));
        }
        act(lower);
    };
    let mut start = None;
    let mut letters = 0_usize;
    let mut before = Kind::Other;
    let mut chars = run.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        let kind = Kind::of(char);
        let begins = match (before, kind) {
            (_, Kind::Other | Kind::Ideograph) | (Kind::Ideograph, _) => true,
            (Kind::Lower | Kind::Digit, Kind::Upper) => true,
            // The last capital of a run begins the next word: `HTTPServer`.
            (Kind::Upper, Kind::Upper) => {
                chars.peek().is_some_and(|(_, next)| Kind::of(*next) == Kind::Lower)
            }
            // `oauth2` is found by `oauth`, while `s3` and `v2` are words.
            (Kind::Lower | Kind::Upper, Kind::Digit) => letters >= 3,
            _ => false,
        };
        before = kind;
        if begins && let Some(start) = start.take() {
            end(&run[start..at]);
        }
        if kind == Kind::Other {
            continue;
        }
        if start.is_none() {
            start = Some(at);
            letters = 0;
        }
        letters += usize::from(kind != Kind::Digit);
    }
    if let Some(start) = start {
        end(&run[start..]);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Lower,
    Upper,
    Digit,
    Ideograph,
    Other,
}

impl Kind {
    fn of_ascii(byte: u8) -> Self {
        match byte {
            b'a'..=b'z' => Self::Lower,
            b'A'..=b'Z' => Self::Upper,
            b'0'..=b'9' => Self::Digit,
            _ => Self::Other,
        }
    }

    fn of(char: char) -> Self {
        match char {
            '\0'..='\x7f' => Self::of_ascii(char as u8),
            '\u{3040}'..='\u{30ff}'
            | '\u{3400}'..='\u{4dbf}'
            | '\u{4e00}'..='\u{9fff}'
            | '\u{20000}'..='\u{3ffff}' => Self::Ideograph,
            char if char.is_uppercase() => Self::Upper,
            char if char.is_alphabetic() => Self::Lower,
            char if char.is_numeric() => Self::Digit,
            _ => Self::Other,
        }
    }
}

/// Plurals only: the S-stemmer (Harman 1991).
fn stem(word: &str) -> Box<str> {
    let ends = |endings: &[&str]| endings.iter().any(|ending| word.ends_with(ending));
    let cut = |count: usize| &word[..word.len() - count];
    if word.chars().nth(3).is_none() {
        word.into()
    } else if ends(&["ies"]) && !ends(&["eies", "aies"]) {
        format!("{}y", cut(3)).into()
    } else if ends(&["s"]) && !ends(&["us", "ss"]) {
        cut(1).into()
    } else {
        word.into()
    }
}

/// Words of sentences that say nothing about a tool, in order.
const STOP_WORDS: [&str; 114] = [
    "a", "about", "again", "all", "also", "am", "an", "and", "any", "are", "as", "at", "be", "been", "being",
    "both", "but", "by", "can", "could", "did", "do", "does", "don", "each", "few", "find", "for", "from",
    "get", "give", "had", "has", "have", "he", "help", "her", "here", "his", "how", "i", "id", "if", "im",
    "in", "into", "is", "it", "its", "ive", "just", "let", "lets", "like", "me", "more", "most", "my",
    "need", "no", "nor", "not", "now", "of", "on", "only", "or", "other", "our", "out", "over", "own",
    "please", "s", "same", "she", "should", "show", "so", "some", "such", "t", "tell", "than", "that", "the",
    "their", "then", "there", "these", "they", "this", "to", "too", "under", "up", "us", "very", "want",
    "was", "we", "what", "when", "where", "which", "who", "whom", "whose", "why", "will", "with", "would",
    "you", "your",
];

fn is_stop_word(word: &str) -> bool {
    STOP_WORDS.binary_search(&word).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut words = Vec::new();
        for_each_word(text, &mut |word| words.push(word.to_owned()));
        words
    }

    #[test]
    fn identifiers_fall_into_words() {
        let check = |text: &str, expected: &str| assert_eq!(words(text).join(" "), expected, "{text}");
        check("", "");
        check("read_file", "read file");
        check("getUserByID", "get user by id");
        check("HTTPServer2", "http server 2");
        check("list-pull.requests/all", "list pull requests all");
        check("oauth2 S3 v2 base64", "oauth 2 s3 v2 base 64");
        check("Straße ÜBER naïve", "straße über naïve");
        check("検索 tool ファイル", "検 索 tool フ ァ イ ル");
        check("don't — stop!", "don t stop");
    }

    #[test]
    fn plurals_lose_their_ending() {
        let check = |word: &str, expected: &str| assert_eq!(&*stem(word), expected, "{word}");
        check("issues", "issue");
        check("files", "file");
        check("queries", "query");
        check("status", "status");
        check("address", "address");
        check("goes", "goe");
        check("trees", "tree");
        check("aws", "aws");
        check("gas", "gas");
    }

    #[test]
    fn stop_words_are_in_order() {
        assert!(STOP_WORDS.is_sorted());
        assert!(is_stop_word("the"));
        assert!(!is_stop_word("file"));
    }

    #[test]
    fn the_first_sentence_stands_apart() {
        let check = |text: &str, head: &str| assert_eq!(head_and_tail(text).0, head, "{text}");
        check("Creates an issue in a repository. Needs a token.", "Creates an issue in a repository.");
        check("E.g. this one is a sentence! And more", "E.g. this one is a sentence!");
        check("Creates an issue in it\n\nMore", "Creates an issue in it");
        check("Creates an issue in it\n  Args:\n x", "Creates an issue in it");
        check("Short. x", "Short. x");
        check("", "");
        check(&"é".repeat(150), &"é".repeat(100));
    }

    fn search(docs: &[Document], query: &str, limit: usize) -> Vec<usize> {
        let hits = Index::build(docs.iter().cloned()).search(query, limit);
        hits.into_iter().map(|hit| hit.doc).collect()
    }

    #[test]
    fn name_weighs_more_than_title_description_and_parameters() {
        let mut docs = vec![Document { name: "x", ..Document::default() }; 5];
        docs[3].name = "weather";
        docs[2].title = "weather";
        docs[1].description = "weather";
        docs[4].parameter_names = vec!["weather"];
        assert_eq!(search(&docs, "Weather!", 10), [3, 2, 1, 4]);
        assert_eq!(search(&docs, "the weathers", 2), [3, 2]);
    }

    #[test]
    fn nothing_is_found_without_a_known_word() {
        let docs = [Document { name: "read_file", ..Document::default() }];
        assert_eq!(search(&docs, "", 5), [] as [usize; 0]);
        assert_eq!(search(&docs, "the of", 5), [] as [usize; 0]);
        assert_eq!(search(&docs, "unknown", 5), [] as [usize; 0]);
        assert_eq!(search(&docs, "unknown file", 5), [0]);
        assert_eq!(search(&docs, "file", 0), [] as [usize; 0]);
        assert_eq!(search(&[], "file", 5), [] as [usize; 0]);
    }

    #[test]
    fn equals_keep_the_order_of_documents() {
        let docs = vec![Document { name: "read_file", ..Document::default() }; 50];
        assert_eq!(search(&docs, "file", 7), [0, 1, 2, 3, 4, 5, 6]);
        let index = Index::build(docs.into_iter());
        let odd: Vec<usize> =
            index.search_among("file", 3, |doc| doc % 2 == 1).iter().map(|hit| hit.doc).collect();
        assert_eq!(odd, [1, 3, 5]);
    }

    /// The terms of each field, as the formula sees them.
    fn fields(doc: &Document) -> [Vec<String>; FIELDS.len()] {
        let (head, tail) = head_and_tail(doc.description);
        let parameters = doc.parameter_names.join(" ");
        [doc.name, doc.title, head, tail, &parameters].map(|text| {
            let words = words(text).into_iter().filter(|word| !is_stop_word(word));
            words.map(|word| stem(&word).into_string()).collect()
        })
    }

    fn naive(docs: &[Document], query: &str) -> Vec<Hit> {
        let docs: Vec<_> = docs.iter().map(fields).collect();
        let count = |term: &String| {
            docs.iter().filter(|doc| doc.iter().flatten().any(|word| word == term)).count() as u32
        };
        let average = |field: usize| {
            let sum: usize = docs.iter().map(|doc| doc[field].len()).sum();
            (sum as f64 / docs.len() as f64).max(1e-6)
        };
        let [query, ..] = fields(&Document { name: query, ..Document::default() });
        let mut hits = Vec::new();
        for (doc, fields) in docs.iter().enumerate() {
            let mut score = 0_f32;
            for (at, term) in query.iter().enumerate() {
                if query[..at].contains(term) || !fields.iter().flatten().any(|word| word == term) {
                    continue;
                }
                let mut frequency = 0.0;
                for (field, words) in fields.iter().enumerate() {
                    let Field { weight, b } = FIELDS[field];
                    let scale = weight / (1.0 - b + b * words.len() as f64 / average(field));
                    words.iter().filter(|word| *word == term).for_each(|_| frequency += scale);
                }
                let mut name: Vec<&String> = Vec::new();
                fields[0].iter().for_each(|word| {
                    if !name.contains(&word) {
                        name.push(word)
                    }
                });
                let mass: f64 = name.iter().map(|word| rarity(count(word), docs.len())).sum();
                let rarity = rarity(count(term), docs.len());
                score += weight(frequency, rarity, if name.contains(&term) { rarity / mass } else { 0.0 });
            }
            if score > 0.0 {
                hits.push(Hit { doc, score });
            }
        }
        hits.sort_by(|a, b| b.score.total_cmp(&a.score));
        hits
    }

    #[test]
    fn s32_ranking_equals_a_naive_double_loop() {
        const WORDS: [&str; 12] = [
            "read",
            "files",
            "file",
            "getUser",
            "issues",
            "a",
            "search",
            "web",
            "queries",
            "the",
            "list.",
            "repository",
        ];
        // A linear congruential generator (Knuth, MMIX).
        let mut state = 1_u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let mut text = |most: usize| -> String {
            let words: Vec<&str> = (0..below(most + 1)).map(|_| WORDS[below(WORDS.len())]).collect();
            words.join(" ")
        };
        for round in 0..40 {
            let texts: Vec<[String; 4]> = (0..30).map(|_| [text(3), text(2), text(14), text(4)]).collect();
            let docs: Vec<Document> = texts
                .iter()
                .map(|[name, title, description, parameters]| Document {
                    name,
                    title,
                    description,
                    parameter_names: parameters.split(' ').collect(),
                })
                .collect();
            let index = Index::build(docs.iter().cloned());
            let query = text(5);
            let expected = naive(&docs, &query);
            assert_eq!(index.search(&query, 100), expected, "round {round}: {query}");
            assert_eq!(index.search(&query, 3), expected[..expected.len().min(3)], "round {round}: {query}");
        }
    }
}
