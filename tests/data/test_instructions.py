import pytest

from bixse.data.task_instructions import Instructions, load_instructions
from bixse.errors import ConfigError, InputError

TABLE = """
[tasks.claims]
instructions = ["Find support for the claim"]

[tasks.twins]
instructions = ["Find the same question", "Find a duplicate"]
symmetric = true
template = "{instruction}:\\n"
"""


@pytest.fixture
def load(tmp_path):
    def load(text=TABLE):
        (tmp_path / "table.toml").write_text(text, encoding="utf-8")
        return load_instructions(tmp_path / "table.toml")

    return load


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("[tasks.a", "got no valid TOML"),
        ("[tasks.a]\ninstructions = []", "tasks.a.instructions"),
        ("[tasks.a]\ninstruction = ['x']", "tasks.a.instruction"),
        ("template = 'Query: {instruction}'", "template"),
        ("template = 'no place\\n'", "template"),
        ("[tasks.query]\ninstructions = ['x']", "'query'"),
        ("[tasks.a]\ninstructions = ['x']\ntemplate = 'x'", "{instruction} once"),
        ("defautl = 'x'", "defautl"),
    ],
)
def test_unusable_table_is_refused(load, text, fact):
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert fact in str(caught.value)
    assert "table.toml" in str(caught.value)


def test_tasks_without_instruction_are_named_together_with_the_closest_task(load):
    with pytest.raises(InputError) as caught:
        load().prompt("claim", "query")
    assert "'claim'" in caught.value.got
    assert caught.value.fix == "did you mean 'claims'?"
    with pytest.raises(InputError, match=r"\('a', rows without a task\)"):
        load().check_tasks("pairs", ["claims", "a", None, "a"])


def test_symmetric_tasks_have_the_instruction_before_documents_too(load):
    table = load()
    claims = "Instruct: Find support for the claim\nQuery:\n"
    assert (table.prompt("claims", "query"), table.prompt("claims", "document")) == (claims, "")
    assert table.prompt("twins", "query", 1) == table.prompt("twins", "document", 1) == "Find a duplicate:\n"
    assert table.prompts() == {"claims": claims, "twins": "Find the same question:\n", "document": ""}


def test_default_is_valid_for_other_tasks_and_for_none_and_a_single_task_is_the_default():
    table = Instructions(default="Find it")
    prompt = "Instruct: Find it\nQuery:\n"
    assert table.prompt(None, "query") == table.prompt("anything", "query") == table.prompts()["query"] == prompt
    table = Instructions(tasks={"twins": {"instructions": ["Same"], "symmetric": True}})
    assert table.prompts()["query"] == table.prompts()["document"] == "Instruct: Same\nQuery:\n"


def test_the_word_paper_is_the_table_of_the_paper_unless_a_file_has_the_name(tmp_path):
    table = load_instructions("paper")
    assert load_instructions(tmp_path / "paper") == table
    assert table.default == "Retrieve the most relevant passages to the given query"
    assert {task for task in table.tasks if table.of(task).symmetric} == {"nli", "quora_duplicates"}
    assert table.choices("nli") == table.choices("quora_duplicates") == 2
    assert table.of("nq") == table.of("miracl") == table.of("mrtydi")
    assert table.of("a task of lightblue's").instructions == (table.default,)
    (tmp_path / "paper").write_text(TABLE, encoding="utf-8")
    assert set(load_instructions(tmp_path / "paper").tasks) == {"claims", "twins"}


def test_hash_depends_on_the_content_and_not_on_the_layout(load):
    expected = load().content_hash()
    assert load("# a note\n" + TABLE).content_hash() == expected
    assert load(TABLE.replace("same", "very")).content_hash() != expected
