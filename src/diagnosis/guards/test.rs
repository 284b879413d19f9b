//! Evaluates a test on the rank, for one rank: true, false or unknown.
//!
//! Understands a small part of Python: `and`, `or`, `not`, arithmetic and comparisons of the rank
//! with numbers, membership in a list of numbers, and the names that frameworks use for "is rank
//! 0". Everything else is unknown, and known parts decide where they can: `step == 3 and rank == 0`
//! is false on rank 1 at every step.

use crate::guards::python::{is_name, is_of_word, tokens};

/// Maximum nesting depth.
const MAX_DEPTH: usize = 32;

/// Names of the global rank: the last part of a dotted name.
const RANK: [&str; 7] =
    ["rank", "global_rank", "get_rank", "world_rank", "ddp_rank", "my_rank", "process_index"];
/// Names of the number of ranks.
const WORLD: [&str; 5] = ["world_size", "get_world_size", "world", "num_ranks", "nranks"];
/// Names of the test for rank 0.
const IS_ZERO: [&str; 12] = [
    "is_main_process",
    "is_main",
    "is_master",
    "is_global_zero",
    "is_rank_zero",
    "is_rank_0",
    "is_rank0",
    "is_world_process_zero",
    "is_zero_rank",
    "main_process",
    "master_process",
    "is_primary",
];

/// Whether the test holds on this rank; `None`: unknown.
pub(super) fn holds(test: &str, rank: u32, world: Option<u32>) -> Option<bool> {
    value(test, rank, world)?.truth()
}

/// The number that an expression is on this rank; `None`: unknown, or not a number.
pub(super) fn number(expression: &str, rank: u32, world: Option<u32>) -> Option<i64> {
    value(expression, rank, world)?.number()
}

fn value(test: &str, rank: u32, world: Option<u32>) -> Option<Value> {
    let tokens = tokens(test)?;
    let mut parser = Parser {
        tokens: &tokens,
        at: 0,
        rank: i64::from(rank),
        world: world.map(i64::from),
        depth: 0,
    };
    let value = parser.or()?;
    // A test that was not parsed to its end is unknown.
    (parser.at == tokens.len()).then_some(value)
}

/// The test with `rank` in place of the name that it compares first: `r == 0`, where `r` is known to
/// follow from the rank. `None`: it does not begin so.
pub(super) fn of_rank(test: &str) -> Option<String> {
    let end = test.find(|c| !is_of_word(c))?;
    let (name, rest) = test.split_at(end);
    let is_name = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let compares = |sign: &&str| rest.trim_start().starts_with(*sign);
    (is_name && ["==", "!=", "<", ">", "%"].iter().any(compares)).then(|| format!("rank{rest}"))
}

const COMPARISONS: [&str; 8] = ["==", "!=", "<=", ">=", "<", ">", "in", "is"];

enum Value {
    Unknown,
    Truth(bool),
    Number(i64),
    Numbers(Vec<i64>),
}

impl Value {
    const fn truth(&self) -> Option<bool> {
        match self {
            Self::Truth(truth) => Some(*truth),
            Self::Number(number) => Some(*number != 0),
            Self::Unknown | Self::Numbers(_) => None,
        }
    }

    fn of_truth(truth: Option<bool>) -> Self {
        truth.map_or(Self::Unknown, Self::Truth)
    }

    const fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }
}

/// The truth of two statements together, any one of which decides if its truth is `decisive`; `None`:
/// unknown.
fn decided(truths: [Option<bool>; 2], decisive: bool) -> Option<bool> {
    match truths {
        _ if truths.contains(&Some(decisive)) => Some(decisive),
        [Some(_), Some(_)] => Some(!decisive),
        _ => None,
    }
}

struct Parser<'a> {
    tokens: &'a [&'a str],
    at: usize,
    rank: i64,
    world: Option<i64>,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let token = self.tokens.get(self.at)?;
        self.at += 1;
        Some(token)
    }

    fn takes(&mut self, token: &str) -> bool {
        let is = self.tokens.get(self.at) == Some(&token);
        self.at += usize::from(is);
        is
    }

    fn or(&mut self) -> Option<Value> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let value = self.joined("or", true, Self::and);
        self.depth -= 1;
        value
    }

    fn and(&mut self) -> Option<Value> {
        self.joined("and", false, Self::not)
    }

    /// Operands with `sign` between them, any one of which decides if its truth is `decisive`.
    fn joined(
        &mut self,
        sign: &str,
        decisive: bool,
        operand: fn(&mut Self) -> Option<Value>,
    ) -> Option<Value> {
        let mut value = operand(self)?;
        while self.takes(sign) {
            let truths = [value.truth(), operand(self)?.truth()];
            value = Value::of_truth(decided(truths, decisive));
        }
        Some(value)
    }

    fn not(&mut self) -> Option<Value> {
        let mut negated = false;
        while self.takes("not") {
            negated = !negated;
        }
        let value = self.comparison()?;
        Some(if negated { Value::of_truth(value.truth().map(|it| !it)) } else { value })
    }

    /// One value, or several with comparisons between them that all have to hold.
    fn comparison(&mut self) -> Option<Value> {
        let mut last = self.sum()?;
        // Whether the comparisons so far hold; the outer `None`: there was none.
        let mut all: Option<Option<bool>> = None;
        loop {
            let start = self.at;
            let is_not_in = self.takes("not");
            let signs = if is_not_in { &["in"][..] } else { &COMPARISONS };
            let Some(sign) = signs.iter().find(|sign| self.takes(sign)) else {
                self.at = start;
                break;
            };
            let negated = is_not_in || *sign == "is" && self.takes("not");
            let right = self.sum()?;
            let this = compare(&last, sign, &right).map(|truth| truth != negated);
            all = Some(decided([all.unwrap_or(Some(true)), this], false));
            last = right;
        }
        Some(all.map_or(last, Value::of_truth))
    }

    fn sum(&mut self) -> Option<Value> {
        self.computed(&["+", "-"], Self::product)
    }

    fn product(&mut self) -> Option<Value> {
        self.computed(&["*", "//", "%"], Self::atom)
    }

    /// Operands with any of these signs of one precedence between them, from left to right.
    fn computed(
        &mut self,
        signs: &[&str],
        operand: fn(&mut Self) -> Option<Value>,
    ) -> Option<Value> {
        let mut value = operand(self)?;
        loop {
            let Some(sign) = signs.iter().find(|sign| self.takes(sign)) else {
                return Some(value);
            };
            let numbers = value.number().zip(operand(self)?.number());
            let result = numbers.and_then(|(a, b)| match *sign {
                "+" => a.checked_add(b),
                "-" => a.checked_sub(b),
                "*" => a.checked_mul(b),
                // With a negative divisor, Python rounds to the other side.
                _ if b <= 0 => None,
                "%" => a.checked_rem_euclid(b),
                _ => a.checked_div_euclid(b),
            });
            value = result.map_or(Value::Unknown, Value::Number);
        }
    }

    fn atom(&mut self) -> Option<Value> {
        match self.next()? {
            "-" => {
                let number = self.atom()?.number().and_then(i64::checked_neg);
                Some(number.map_or(Value::Unknown, Value::Number))
            }
            "(" => self.sequence(")"),
            "[" => self.sequence("]"),
            "{" => self.sequence("}"),
            "True" => Some(Value::Truth(true)),
            "False" => Some(Value::Truth(false)),
            name if is_name(name) => self.name(name),
            text if text.starts_with(['"', '\'']) => Some(Value::Unknown),
            number => number.parse().ok().map(Value::Number),
        }
    }

    /// The values in brackets: one value, or a list.
    fn sequence(&mut self, close: &str) -> Option<Value> {
        let (mut values, mut commas) = (Vec::new(), close != ")");
        while !self.takes(close) {
            values.push(self.or()?);
            if !self.takes(",") {
                if !self.takes(close) {
                    return None;
                }
                break;
            }
            commas = true;
        }
        if !commas && values.len() == 1 {
            return values.pop();
        }
        let numbers: Option<Vec<i64>> = values.iter().map(Value::number).collect();
        Some(numbers.map_or(Value::Unknown, Value::Numbers))
    }

    /// A dotted name with calls and indexes. Its value is known if its last part is a known name.
    fn name(&mut self, first: &'a str) -> Option<Value> {
        let (mut last, mut arguments, mut indexed) = (first, Vec::new(), false);
        loop {
            if self.takes(".") {
                (last, arguments) = (self.next().filter(|it| is_name(it))?, Vec::new());
            } else if self.takes("(") {
                let before = self.at;
                if !self.takes(")") {
                    self.at = before;
                    arguments.push(self.sequence(")")?);
                }
            } else if self.takes("[") {
                self.sequence("]")?;
                indexed = true;
            } else {
                break;
            }
        }
        Some(match last {
            _ if indexed => Value::Unknown,
            name if RANK.contains(&name) && arguments.is_empty() => Value::Number(self.rank),
            name if IS_ZERO.contains(&name) && arguments.is_empty() => Value::Truth(self.rank == 0),
            name if WORLD.contains(&name) && arguments.is_empty() => {
                self.world.map_or(Value::Unknown, Value::Number)
            }
            "int" | "bool" if arguments.len() == 1 => arguments.pop()?,
            _ => Value::Unknown,
        })
    }
}

fn compare(a: &Value, sign: &str, b: &Value) -> Option<bool> {
    match (a, b) {
        (Value::Number(a), Value::Numbers(b)) if sign == "in" => Some(b.contains(a)),
        (Value::Number(a), Value::Number(b)) => Some(match sign {
            "==" | "is" => a == b,
            "!=" => a != b,
            "<=" => a <= b,
            ">=" => a >= b,
            "<" => a < b,
            ">" => a > b,
            _ => return None,
        }),
        (Value::Truth(a), Value::Truth(b)) if matches!(sign, "==" | "is") => Some(a == b),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{holds, number, of_rank};

    #[test]
    fn tests_on_the_rank_evaluate_per_rank() {
        for (test, zero, one) in [
            ("rank == -(0 - 9223372036854775807 - 1)", None, None),
            ("rank == 0", Some(true), Some(false)),
            ("dist.get_rank() != 0", Some(false), Some(true)),
            ("not self.rank", Some(true), Some(false)),
            ("0 == trainer.global_rank", Some(true), Some(false)),
            ("rank in (0, 2)", Some(true), Some(false)),
            ("rank not in [0]", Some(false), Some(true)),
            ("accelerator.is_main_process", Some(true), Some(false)),
            ("step == 3 and rank == 0", None, Some(false)),
            ("rank > 0 or debug", None, Some(true)),
            ("not (rank == 0 and save)", None, Some(true)),
            ("rank == world_size - 1", Some(false), Some(true)),
            ("i == 3 and rank == world - 1", Some(false), None),
            ("0 < rank < 4", Some(false), Some(true)),
            ("rank % 2 == 0", Some(true), Some(false)),
            ("int(rank) == 0", Some(true), Some(false)),
            ("(rank) == (0)", Some(true), Some(false)),
            ("rank < -1", Some(false), Some(false)),
        ] {
            assert_eq!(holds(test, 0, Some(2)), zero, "{test} on rank 0");
            assert_eq!(holds(test, 1, Some(2)), one, "{test} on rank 1");
        }
    }

    #[test]
    fn expressions_with_the_rank_are_numbers() {
        for (text, zero, one) in [
            ("1 - rank", Some(1), Some(0)),
            ("(dist.get_rank() + 1) % world_size", Some(1), Some(0)),
            ("1 + rank % 2", Some(1), Some(2)),
            ("3 - rank * 2", Some(3), Some(1)),
            ("10 - 4 - rank", Some(6), Some(5)),
            ("rank // 2 * 2 + 1", Some(1), Some(1)),
            ("(0 - 1 - rank) // 2", Some(-1), Some(-1)),
            ("(0 - 1 - rank) % 3", Some(2), Some(1)),
            ("rank % -2", None, None),
            ("rank // (rank - 1)", None, None),
            ("rank == 0", None, None),
            ("x = torch.ones(4 - rank)", None, None),
            ("dist.all_reduce(torch.ones(4 - rank))", None, None),
        ] {
            assert_eq!([number(text, 0, Some(2)), number(text, 1, Some(2))], [zero, one], "{text}");
        }
    }

    #[test]
    fn name_that_is_compared_first_may_stand_for_the_rank() {
        assert_eq!(of_rank("r == 0").as_deref(), Some("rank == 0"));
        assert_eq!(of_rank("_me%2 == 0").as_deref(), Some("rank%2 == 0"));
        for test in ["saves", "not r", "0 == r", "a.r == 0", "r in (0, 1)", ""] {
            assert_eq!(of_rank(test), None, "{test}");
        }
    }

    #[test]
    fn unsupported_tests_are_unknown() {
        let deep = "(".repeat(10_000) + "rank" + &")".repeat(10_000);
        for test in [
            "local_rank == 0",
            "ranks[rank] == 0",
            "rank == leader",
            "loss.item() > 1.5",
            "rank ==",
            "rank == 0)",
            "lambda: rank",
            "os.environ[\"RANK\"] == \"0\"",
            "rank == 99999999999999999999",
            "rank == 0 if a else b",
            "rank @ 2",
            "",
            "'",
            deep.as_str(),
            "rank % 0 == 0",
        ] {
            assert_eq!(holds(test, 0, Some(2)), None, "{test}");
        }
    }
}
