(* What a phase can do: step 2 to 6 of the proof in flashsim/theory/lower.py. *)

From Coq Require Import Lia.
Set Warnings "-notation-overridden".
From mathcomp Require Import all_ssreflect.
From Proofs Require Import arithmetic loomis_whitney model.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Phases.
Variables N_q N_k d d_v M : nat.
Variable allowed : {set 'I_N_q * 'I_N_k}.
Notation word := (word N_q N_k d d_v).
Notation operation := (operation N_q N_k d d_v).
Notation run := (run N_q N_k d d_v).
Notation legal := (legal M allowed).
Notation output := ('I_N_q * 'I_d_v)%type.

(* What a word is of: parts of one sum are of one thing. *)
Definition thing := ('I_N_q * 'I_d + ('I_N_k * 'I_d + ('I_N_k * 'I_d_v + ('I_N_q * 'I_N_k + output))))%type.
Definition of_Q x : thing := inl x.
Definition of_K x : thing := inr (inl x).
Definition of_V x : thing := inr (inr (inl x)).
Definition of_pair x : thing := inr (inr (inr (inl x))).
Definition of_out x : thing := inr (inr (inr (inr x))).

Definition about (w : word) : thing :=
  match w with
  | Q i c => of_Q (i, c)
  | K k c => of_K (k, c)
  | V k c => of_V (k, c)
  | Pair i k _ => of_pair (i, k)
  | Out i c _ => of_out (i, c)
  end.

Definition things (chip : {set word}) : {set thing} := about @: chip.

Definition outs (chip : {set word}) : {set output} := [set x | of_out x \in things chip].

Lemma out_on_chip i c s (chip : {set word}) : Out i c s \in chip -> (i, c) \in outs chip.
Proof. by move=> on_chip; rewrite inE; apply/imsetP; exists (Out i c s). Qed.

(* Outputs on chip that will be stored before all parts of them have left the chip. *)
Definition stored (o : operation) : {set output} := if o is Store (Out i c _) then [set (i, c)] else set0.

Fixpoint pend (chip : {set word}) (steps : run) : {set output} :=
  if steps is (o, after) :: rest then outs chip :&: (stored o :|: pend after rest) else set0.

Lemma pend_outs chip steps : pend chip steps \subset outs chip.
Proof. by case: steps => [|[o after] rest] /=; [apply: sub0set | apply: subsetIl]. Qed.

(* A step, with what is on chip before it, and what is pending after it. *)
Record moment := Moment {before : {set word}; op : operation; after : {set word}; pending : {set output}}.

Fixpoint trace (chip : {set word}) (steps : run) : seq moment :=
  if steps is (o, after) :: rest then Moment chip o after (pend after rest) :: trace after rest else [::].

(* What a step is charged for: a load of what is no output, or an output that begins to be on chip and will be stored from there. *)
Definition loaded (o : operation) : {set thing} :=
  match o with Load (Out _ _ _) => set0 | Load w => [set about w] | _ => set0 end.

Definition charged (a : moment) : {set thing} := loaded (op a) :|: of_out @: (pending a :\: outs (before a)).

Definition charges (l : seq moment) : nat := \sum_(a <- l) #|charged a|.

Lemma of_out_inj : injective of_out. Proof. by move=> ? ? []. Qed.

Lemma charges_are_accesses chip steps : charges (trace chip steps) + #|pend chip steps| <= accesses steps.
Proof.
rewrite /charges; elim: steps chip => [|[o after] rest IH] chip /=; first by rewrite big_nil cards0.
rewrite big_cons /charged /=; set new := pend after rest.
have own : #|loaded o| + #|stored o| <= access o.
  by case: o => [[]|[]|||| ] * //=; rewrite ?cards1 ?cards0.
have kept : #|outs chip :&: (stored o :|: new)| <= #|stored o| + #|new :&: outs chip|.
  rewrite setIUr (leq_trans (leq_card_setU _ _)) // leq_add ?subset_leq_card ?subsetIr //.
  by rewrite setIC.
have fresh : #|loaded o :|: of_out @: (new :\: outs chip)| <= #|loaded o| + #|new :\: outs chip|.
  by rewrite (leq_trans (leq_card_setU _ _)) // leq_add2l leq_imset_card.
have := IH after; rewrite -/new -(cardsID (outs chip) new) => rest_ok.
apply: (leq_trans (leq_add (leq_add fresh (leqnn _)) kept)).
set r := \sum_(_ <- _) _ in rest_ok *.
have -> : #|loaded o| + #|new :\: outs chip| + r + (#|stored o| + #|new :&: outs chip|)
        = #|loaded o| + #|stored o| + (r + (#|new :&: outs chip| + #|new :\: outs chip|)).
  by rewrite -!plusE; lia.
by apply: leq_add.
Qed.
