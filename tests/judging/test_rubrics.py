import pytest
from hypothesis import given
from hypothesis import strategies as st

from bixse.errors import ConfigError, InputError
from bixse.judging.rubrics import PromptVariant, Rubric, load_rubric, rubric_toml


def test_the_papers_rubrics_word_for_word():
    graded, binary = load_rubric("trec-dl-0-3"), load_rubric("binary-0-1")
    assert graded.variants[0].messages("q", "d")[0] == {
        "role": "system",
        "content": "Your task is to judge how well the passage answers the query on a scale from 0 to 3. 0 - "
        "Irrelevant, 1 - Relevant topic, but does not contain the answer, 2 - Highly relevant, partial or unclear "
        "answer, and 3 - Perfectly relevant, exact answer. Answer with 0, 1, 2 or 3.",
    }
    assert binary.variants[0].messages("q", "d")[0]["content"] == (
        "Your task is to judge how well the passage answers the query. 0 - Irrelevant, 1 - Perfectly relevant, exact "
        "answer. Answer with 0, or 1."
    )
    assert (graded.values, binary.values) == ((0, 1, 2, 3), (0, 1))


def test_lightblue_is_asked_in_both_orders_of_the_input_and_one_order_of_the_scale():
    rubric = load_rubric("relatedness-1-5")
    first, second = (variant.messages("the query", "the text")[1]["content"] for variant in rubric.variants)
    assert first == "<<<Text>>>\nthe text\n\n\n<<<Query>>>\nthe query"
    assert second == "<<<Query>>>\nthe query\n\n\n<<<Text>>>\nthe text"
    assert rubric.labels == ("1", "2", "3", "4", "5")
    assert rubric.scale.to_relevance(4.0) == 0.75


def test_texts_that_look_like_fields_stay_as_they_are():
    message = load_rubric("trec-dl-0-3").variants[0].messages("{document}", "{query} {0} %s")[1]["content"]
    assert message == "Query: {document}\n\nPassage: {query} {0} %s"


def test_a_changed_word_changes_the_hash_and_a_changed_summary_does_not(tmp_path):
    path = tmp_path / "mine.toml"

    def load(system, summary):
        path.write_text(
            f'[mine]\nsummary = "{summary}"\nmeanings = ["{summary}", ""]\nlabels = ["no", "yes"]\nvalues = [0, 1]\n'
            f'[[mine.orders]]\nname = "one"\nsystem = "{system}"\nuser = "{{query}} {{document}}"\n'
        )
        return load_rubric(path).content_hash

    assert load("a", "x") == load("a", "y") != load("b", "x")


GOOD = '[mine]\nlabels = ["0", "1"]\n[[mine.orders]]\nname = "one"\nuser = "{query} {document}"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD.replace('"{query} {document}"', '"{query}"'), "document"),
        (GOOD.replace('"{query} {document}"', '"{query} {document} {query}"'), "once each"),
        (GOOD.replace('["0", "1"]', '["no", "yes"]'), "values"),
        (GOOD.replace('["0", "1"]', '["0", "0"]'), "each once"),
        (GOOD.replace('["0", "1"]', '["1", "0"]'), "rising"),
        (GOOD.replace('["0", "1"]', '["0"]'), "labels"),
        (GOOD.replace('["0", "1"]', '["no", "yes"]\nvalues = [0, inf]'), "finite"),
        (GOOD.replace('["0", "1"]', '[" 0", "1"]'), "spaces"),
        (GOOD.replace('["0", "1"]', '["0", "1"]\nmeanings = ["irrelevant"]'), "meanings"),
        (GOOD + "colour = 3\n", "colour"),
        (GOOD.replace("labels", "lables"), "lables"),
        ("not = [toml", "no valid TOML"),
        ("", "one table per rubric"),
    ],
)
def test_an_invalid_rubric_is_refused_with_its_place(tmp_path, text, says):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="fix") as caught:
        load_rubric(path)
    assert says in str(caught.value)


def test_a_file_that_is_not_there_or_has_several_rubrics_is_refused(tmp_path):
    with pytest.raises(InputError, match="no-such"):
        load_rubric(tmp_path / "no-such.toml")
    path = tmp_path / "two.toml"
    path.write_text(GOOD + GOOD.replace("mine", "other"))
    with pytest.raises(InputError, match="got the rubrics mine, other; expected one"):
        load_rubric(path)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(['"""', "\\u0041", "\r\n", "\n\n\x7f\t"])


@given(TEXTS, TEXTS, TEXTS.filter(str.strip))
def test_a_rubric_that_is_written_is_read_as_it_was(tmp_path_factory, system, text, name):
    user = f"{{query}}{text.replace('{', '')}{{document}}"
    variants = (PromptVariant(name="a", system=system, user=user), PromptVariant(name=name + "b", user=user))
    rubric = Rubric(name=name, labels=("no", "yes"), values=(0.0, 1.5), variants=variants, summary=text, source=system,
                    meanings=(text, ""))  # fmt: skip
    path = tmp_path_factory.getbasetemp() / "written.toml"
    path.write_bytes(rubric_toml(rubric).encode())
    assert load_rubric(path) == rubric
