(* Runs of attention on a chip: what the theorem is about. O = PV, where P_ik is a function of S_ik = sum over c of Q_ic K_kc.
   Statistics of the softmax cost nothing, and nor does what they do to P and O. Only the allowed pairs (i, k) count. *)

Set Warnings "-notation-overridden".
From mathcomp Require Import all_ssreflect.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Model.
Variables N_q N_k d d_v : nat.
Implicit Types (i : 'I_N_q) (k : 'I_N_k).

(* A word is one number, told by what is in it. Pair i k s is the sum of Q_ic K_kc over c in s; the sum over all c serves as P_ik.
   Out i c s is the sum of P_ik V_kc over k in s. A run may add a term twice, which does not change the word: so there are more
   runs here than real ones, and what holds for all of them holds for those. *)
Inductive word :=
  | Q of 'I_N_q & 'I_d
  | K of 'I_N_k & 'I_d
  | V of 'I_N_k & 'I_d_v
  | Pair of 'I_N_q & 'I_N_k & {set 'I_d}
  | Out of 'I_N_q & 'I_d_v & {set 'I_N_k}.

(* Words form a finite type, so that there are finite sets of them. *)
Definition sums := ('I_N_q * 'I_N_k * {set 'I_d} + 'I_N_q * 'I_d_v * {set 'I_N_k})%type.
Definition code := ('I_N_q * 'I_d + ('I_N_k * 'I_d + ('I_N_k * 'I_d_v + sums)))%type.

Definition encode (w : word) : code :=
  match w with
  | Q i c => inl (i, c)
  | K k c => inr (inl (k, c))
  | V k c => inr (inr (inl (k, c)))
  | Pair i k s => inr (inr (inr (inl (i, k, s))))
  | Out i c s => inr (inr (inr (inr (i, c, s))))
  end.

Definition decode (x : code) : word :=
  match x with
  | inl (i, c) => Q i c
  | inr (inl (k, c)) => K k c
  | inr (inr (inl (k, c))) => V k c
  | inr (inr (inr (inl (i, k, s)))) => Pair i k s
  | inr (inr (inr (inr (i, c, s)))) => Out i c s
  end.

Lemma encodeK : cancel encode decode. Proof. by case. Qed.

Definition word_eqMixin := CanEqMixin encodeK.
Canonical word_eqType := EqType word word_eqMixin.
Definition word_choiceMixin := CanChoiceMixin encodeK.
Canonical word_choiceType := ChoiceType word word_choiceMixin.
Definition word_countMixin := CanCountMixin encodeK.
Canonical word_countType := CountType word word_countMixin.
Definition word_finMixin := CanFinMixin encodeK.
Canonical word_finType := FinType word word_finMixin.

Inductive operation :=
  | Load of word
  | Store of word
  | Multiply_QK of 'I_N_q & 'I_N_k & 'I_d & {set 'I_d}         (* S_ik, so far the terms s, += Q_ic * K_kc *)
  | Add_pairs of 'I_N_q & 'I_N_k & {set 'I_d} & {set 'I_d}     (* two parts of S_ik added *)
  | Multiply_PV of 'I_N_q & 'I_N_k & 'I_d_v & {set 'I_N_k}     (* O_ic, so far the terms s, += P_ik * V_kc *)
  | Add_outs of 'I_N_q & 'I_d_v & {set 'I_N_k} & {set 'I_N_k}. (* two parts of O_ic added *)

Definition result (o : operation) : word :=
  match o with
  | Load w | Store w => w
  | Multiply_QK i k c s => Pair i k (c |: s)
  | Add_pairs i k s t => Pair i k (s :|: t)
  | Multiply_PV i k c s => Out i c (k |: s)
  | Add_outs i c s t => Out i c (s :|: t)
  end.

(* What an operation needs on chip, and a load in HBM. An empty sum needs no place. *)
Definition possible (hbm chip : {set word}) (o : operation) : bool :=
  match o with
  | Load w => w \in hbm
  | Store w => w \in chip
  | Multiply_QK i k c s => [&& Q i c \in chip, K k c \in chip & (s == set0) || (Pair i k s \in chip)]
  | Add_pairs i k s t => (Pair i k s \in chip) && (Pair i k t \in chip)
  | Multiply_PV i k c s => [&& Pair i k setT \in chip, V k c \in chip & (s == set0) || (Out i c s \in chip)]
  | Add_outs i c s t => (Out i c s \in chip) && (Out i c t \in chip)
  end.

(* A step is an operation, and the words on chip after it: any of those before and its result, M at most. So a result may take
   the place of an operand, and what is on chip may be forgotten at any time. A run is a list of steps. *)
Definition run := seq (operation * {set word}).

Definition written (hbm : {set word}) (o : operation) : {set word} := if o is Store w then w |: hbm else hbm.

Variable M : nat.
Variable allowed : {set 'I_N_q * 'I_N_k}.

Definition row i : {set 'I_N_k} := [set k | (i, k) \in allowed].

(* An output of a query without keys need not be written. *)
Definition finished (hbm : {set word}) : Prop := forall i k c, (i, k) \in allowed -> Out i c (row i) \in hbm.

Fixpoint legal (hbm chip : {set word}) (steps : run) : Prop :=
  if steps is (o, after) :: rest
  then [/\ possible hbm chip o, after \subset result o |: chip, #|after| <= M & legal (written hbm o) after rest]
  else finished hbm.

Definition is_input (w : word) : bool := match w with Q _ _ | K _ _ | V _ _ => true | _ => false end.

Definition inputs : {set word} := [set w | is_input w].

(* At first the inputs are in HBM, and nothing is on chip. At the end the outputs are in HBM. *)
Definition attention (steps : run) : Prop := legal inputs set0 steps.

Definition access (o : operation) : bool := match o with Load _ | Store _ => true | _ => false end.

Definition accesses (steps : run) : nat := count (fun step => access step.1) steps.
End Model.

Arguments Q {N_q N_k d d_v}.
Arguments K {N_q N_k d d_v}.
Arguments V {N_q N_k d d_v}.
Arguments Pair {N_q N_k d d_v}.
Arguments Out {N_q N_k d d_v}.
Arguments Multiply_QK {N_q N_k d d_v}.
Arguments Multiply_PV {N_q N_k d d_v}.

(* There are such runs: the smallest attention moves four words, two of them on chip at most. *)
Example smallest : exists steps : run 1 1 1 1, attention 2 setT steps /\ accesses steps = 4.
Proof.
pose q : word 1 1 1 1 := Q ord0 ord0; pose k : word 1 1 1 1 := K ord0 ord0; pose v : word 1 1 1 1 := V ord0 ord0.
pose p : word 1 1 1 1 := Pair ord0 ord0 [set ord0]; pose o : word 1 1 1 1 := Out ord0 ord0 [set ord0].
have all : [set: 'I_1] = [set ord0] by apply/setP => x; rewrite !inE (ord1 x) eqxx.
have one (x : word 1 1 1 1) A : [set x] \subset x |: A by rewrite sub1set setU11.
have two (x y : word 1 1 1 1) : #|[set x; y]| <= 2 by rewrite cards2; case: (_ != _).
have one_key (i : 'I_1) : row [set: 'I_1 * 'I_1] i = [set ord0] by apply/setP => x; rewrite !inE (ord1 x) eqxx.
exists [:: (Load q, [set q]); (Load k, [set q; k]); (Multiply_QK ord0 ord0 ord0 set0, [set p]); (Load v, [set p; v]);
           (Multiply_PV ord0 ord0 ord0 set0, [set o]); (Store o, set0)]; split; last by [].
rewrite /attention /=; do !apply: And4.
all: rewrite ?all ?setU0 ?one ?two ?cards1 ?cards0 ?sub0set // ?inE ?eqxx ?orbT //.
- by rewrite [[set k; q]]setUC.
- by rewrite [[set v; p]]setUC.
- by move=> i j c _; rewrite one_key (ord1 i) (ord1 c) !inE eqxx.
Qed.
