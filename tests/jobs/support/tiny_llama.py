"""A random Llama with 20 words, for engines that load a model: nothing is downloaded."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
WORDS = "the a cat dog sees runs to from house tree and then red blue small old one two three four".split()


def tokenizer():
    vocabulary = {word: index for index, word in enumerate(SPECIAL + WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    fast.padding_side = "left"
    return fast


def model():
    """The same on every rank."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2))


def sentences(count, length=12):
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(0, len(WORDS), (count, length), generator=generator)
    return [" ".join(WORDS[index] for index in row) for row in drawn.tolist()]


def save(folder):
    """Writes model and tokenizer, as an engine loads them."""
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
